package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/reconcile"
	"example.com/shop/migrations"
)

// app is the rooms of one process, joined. Building it starts nothing.
type app struct {
	db     *sql.DB
	rdb    redis.UniversalClient
	queue  *delay.Queue
	outbox *delay.Outbox

	orders     *order.Service
	changes    *order.Announcer
	feed       *order.Feed
	store      *order.Store
	publisher  *delay.Publisher
	relay      *delay.Relay
	worker     *delay.Worker
	reconciler *reconcile.Reconciler

	registry *prometheus.Registry
	log      *slog.Logger

	newerSchema *migrations.VersionError // nil: the database's schema is this binary's
	stopping    atomic.Bool              // the process was told to stop
}

// newApp connects to the database and builds the components. Redis may be down. It returns an error if the database is
// down, or if its schema is older than the binary's. A newer schema is not: during a rolling update, and after a rollback,
// the processes of the older version go on with it.
func newApp(ctx context.Context, o *serveOptions, workerDrain time.Duration, log *slog.Logger) (*app, error) {
	gdb, err := order.Open(ctx, o.DatabaseURL, o.DatabaseConns)
	if err != nil {
		return nil, err
	}
	db, err := gdb.DB()
	if err != nil {
		return nil, fmt.Errorf("database handle: %w", err)
	}
	a := &app{db: db, registry: newRegistry(), log: log}
	if err := a.build(ctx, o, order.NewStore(gdb), workerDrain); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

func (a *app) build(ctx context.Context, o *serveOptions, store *order.Store, workerDrain time.Duration) error {
	err := migrations.Check(ctx, a.db)
	if version, ok := errors.AsType[*migrations.VersionError](err); ok && version.IsNewer() {
		a.newerSchema = version
		a.log.Warn("the database's schema is newer than this binary's, as in a rolling update; this process goes on with it",
			"schema", version.Have, "binary", version.Want)
	} else if err != nil {
		return err
	}
	if a.rdb, err = delay.Connect(o.RedisURL); err != nil {
		return usageError{err}
	}
	if a.queue, err = delay.NewQueue(a.rdb, delay.Config{Kind: order.CancelKind, Shards: o.QueueShards}); err != nil {
		return usageError{err}
	}
	a.store = store
	a.outbox = delay.NewOutbox(a.db, order.CancelKind)
	a.publisher = delay.NewPublisher(a.queue, a.outbox, delay.PublisherConfig{}, a.log, a.registry)
	a.relay = delay.NewRelay(a.queue, a.outbox, delay.RelayConfig{}, a.log, a.registry)
	a.changes = order.NewAnnouncer(a.rdb, a.log, a.registry)
	a.feed = order.NewFeed(a.rdb, a.log, a.registry)
	a.orders = order.NewService(store, a.publisher, a.changes, order.Config{Timeout: o.OrderTimeout}, a.log, a.registry)
	a.worker = delay.NewWorker(a.queue, a.orders.CancelDue, delay.WorkerConfig{Drain: workerDrain}, a.log, a.registry)
	a.registry.MustRegister(delay.NewDepthCollector(a.queue, a.outbox))
	a.reconciler, err = newReconciler(a, o.reconcileOptions)
	return err
}

func (a *app) close() {
	if a.rdb != nil {
		a.rdb.Close()
	}
	a.db.Close()
}

// run runs the roles, and more if there are, until ctx ends and the drain is over, or until one of them fails, which
// ends the others.
func (a *app) run(ctx context.Context, o *serveOptions, ln net.Listener, handler http.Handler, more ...func(context.Context) error) error {
	defer a.announcing(ctx)()
	ctx, cancel := a.drained(ctx, o.Drain)
	defer cancel()
	parts, ctx := errgroup.WithContext(ctx)
	for _, part := range more {
		parts.Go(func() error { return part(ctx) })
	}
	parts.Go(func() error { return serveHTTP(ctx, ln, handler, a.log) })
	if o.has("api") {
		parts.Go(func() error { return a.publisher.Run(ctx) })
		parts.Go(func() error { return a.feed.Run(ctx) })
	}
	if o.has("relay") {
		parts.Go(func() error { return a.relay.Run(ctx) })
	}
	if o.has("worker") {
		parts.Go(func() error { return a.worker.Run(ctx) })
	}
	if o.has("reconciler") {
		parts.Go(func() error { return a.reconciler.Run(ctx) })
	}
	return parts.Wait()
}

// drained returns a context that ends a while after ctx does. Meanwhile the process serves as before, but
// [app.ready] tells load balancers to send it nothing more.
func (a *app) drained(ctx context.Context, while time.Duration) (context.Context, context.CancelFunc) {
	drained, cancel := context.WithCancel(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() {
		defer cancel()
		a.stopping.Store(true)
		a.log.Info("stopping: /readyz answers 503 from now on", "drain", while.String())
		timer := time.NewTimer(while)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-drained.Done(): // a part has failed
		}
	})
	return drained, func() { forget(); cancel() }
}

// announcing tells open pages of changes until stop is called, so that what parts change while they end is told
// too.
func (a *app) announcing(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := a.changes.Run(ctx); err != nil {
			a.log.Warn("open pages were not told of the last changes", "error", err)
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// shutdownGrace is what requests under way get to finish.
const shutdownGrace = 10 * time.Second

// serveHTTP serves until ctx ends, then finishes what is under way.
func serveHTTP(ctx context.Context, ln net.Listener, handler http.Handler, log *slog.Logger) error {
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      15 * time.Second, // longer than requestTimeout: a late answer is still an answer
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug), // clients that hang up
	}
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
		defer cancel()
		stopped <- server.Shutdown(grace)
	})
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		stop()
		return fmt.Errorf("serve HTTP: %w", err)
	}
	if err := <-stopped; err != nil {
		log.Warn("requests were cut off at shutdown", "error", err)
		return server.Close()
	}
	return nil
}

// serveCommand is `shop serve`.
type serveCommand struct {
	serveOptions
}

func (c *serveCommand) Run(ctx context.Context, to streams) error {
	if err := c.validate(); err != nil {
		return usageError{err}
	}
	log := newLogger(to.err, c.LogLevel, false)
	a, err := newApp(ctx, &c.serveOptions, 0, log)
	if err != nil {
		return err
	}
	defer a.close()
	handler, err := a.handler(&c.serveOptions, nil)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", c.HTTPAddr)
	if err != nil {
		return fmt.Errorf("listen on SHOP_HTTP_ADDR: %w", err)
	}
	log.Info("serving", "addr", ln.Addr().String(), "roles", c.Roles, "version", version())
	defer log.Info("stopped")
	return a.run(ctx, &c.serveOptions, ln, handler)
}
