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
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/live"
	"example.com/shop/internal/order"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/rest"
	"example.com/shop/migrations"
)

// app holds the components of one process. Building it starts none of them.
type app struct {
	db    *sql.DB
	rdb   redis.UniversalClient
	kinds kinds

	orders    *order.Service
	store     *order.Store
	reminders *reminders
	payments  *payments // nil: the shop has no payment provider
	notifier  *live.Notifier
	hub       *live.Hub

	registry *prometheus.Registry
	metrics  prometheus.Registerer // of the registry, with the prefix shop_
	log      *slog.Logger

	newerSchema *migrations.VersionError // the versions, if the database's schema is newer than the binary's; else nil
	stopping    atomic.Bool              // the process received a signal to stop
}

// liveConfig names the notifications. The pages of an order's customer learn which order has changed, and all pages
// learn that the stock may have changed.
var liveConfig = live.Config{Channel: "order:feed", TopicEvent: "order", BroadcastEvent: "products"}

// newApp connects to the database and builds the components. It returns an error if the database is down, or if its
// schema is older than the binary's. It accepts a newer schema: during a rolling update processes of the older version
// continue to run, and after a rollback they start. Redis may be down.
func newApp(ctx context.Context, o *serveOptions, workerDrain time.Duration, log *slog.Logger) (*app, error) {
	gdb, err := postgres.Open(ctx, o.DatabaseURL, "shop", o.DatabaseConns)
	if err != nil {
		return nil, err
	}
	db, err := gdb.DB()
	if err != nil {
		return nil, fmt.Errorf("database handle: %w", err)
	}
	a := &app{db: db, registry: newRegistry(), log: log}
	a.metrics = prometheus.WrapRegistererWithPrefix("shop_", a.registry)
	if err := a.build(ctx, o, gdb, workerDrain); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

func (a *app) build(ctx context.Context, o *serveOptions, gdb *gorm.DB, workerDrain time.Duration) error {
	err := migrations.Check(ctx, a.db)
	if version, ok := errors.AsType[*migrations.VersionError](err); ok && version.IsNewer() {
		a.newerSchema = version
		a.log.Warn("the database's schema is newer than this binary's, as in a rolling update; this process works with it",
			"schema", version.Have, "binary", version.Want)
	} else if err != nil {
		return err
	}
	if a.rdb, err = delay.Connect(o.RedisURL); err != nil {
		return usageError{err}
	}
	a.notifier = live.NewNotifier(a.rdb, liveConfig, a.log, a.metrics)
	a.hub = live.NewHub(a.rdb, liveConfig, a.log, a.metrics)
	a.store = order.NewStore(gdb)

	cancel, err := a.newKind(order.CancelKind, o)
	if err != nil {
		return err
	}
	config := order.Config{
		Timeout: o.OrderTimeout, Extension: o.OrderExtension, MaxOpenOrders: o.MaxOpenOrders, MaxOpenUnits: o.MaxOpenUnits,
	}
	if config.Held, err = a.buildPayments(gdb, o, cancel.publisher); err != nil {
		return err
	}
	if a.reminders, err = a.newReminders(o); err != nil {
		return err
	}
	config.Reminders = a.reminders.schedule
	a.orders = order.NewService(a.store, cancel.publisher, a.notifier, config, a.log, a.metrics)
	if err := a.addKind(cancel, o, workerDrain, domain{handle: a.orders.CancelDue, table: a.orders}); err != nil {
		return err
	}
	if err := a.addPayments(o, workerDrain); err != nil {
		return err
	}
	a.reminders.work(a, workerDrain)
	return nil
}

func (a *app) close() {
	if a.rdb != nil {
		a.rdb.Close()
	}
	a.closePayments()
	a.db.Close()
}

// run runs the components of the roles, and the extra components, until ctx ends and the drain is over. If one of them
// fails, run stops the others and returns the error.
func (a *app) run(ctx context.Context, o *serveOptions, ln net.Listener, handler http.Handler, extra ...func(context.Context) error) error {
	defer a.startNotifier(ctx)()
	ctx, cancel := a.drained(ctx, o.Drain)
	defer cancel()
	components, ctx := errgroup.WithContext(ctx)
	for _, component := range extra {
		components.Go(func() error { return component(ctx) })
	}
	components.Go(func() error { return rest.Serve(ctx, ln, a.orders.Shed(handler), a.log) })
	if o.has("api") {
		components.Go(func() error { return a.hub.Run(ctx) })
		components.Go(func() error { return a.reminders.schedule.Run(ctx) })
	}
	if o.has("worker") {
		components.Go(func() error { return a.runWorkers(ctx) })
	}
	for _, k := range a.kinds {
		components.Go(func() error { return k.publisher.Run(ctx) }) // each role may publish tasks
		if o.has("relay") {
			components.Go(func() error { return k.relay.Run(ctx) })
		}
	}
	if o.has("reconciler") {
		components.Go(func() error { return a.kinds.runReconcilers(ctx) })
	}
	return components.Wait()
}

// drained returns a context that ends later than ctx, by the duration drain. In the meantime the process serves as
// before, but [app.ready] tells load balancers to send it no more requests.
func (a *app) drained(ctx context.Context, drain time.Duration) (context.Context, context.CancelFunc) {
	drained, cancel := context.WithCancel(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() {
		defer cancel()
		a.stopping.Store(true)
		a.log.Info("stopping: /readyz answers 503 from now on", "drain", drain.String())
		timer := time.NewTimer(drain)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-drained.Done(): // a component has failed
		}
	})
	return drained, func() { forget(); cancel() }
}

// startNotifier starts the notifier, which runs until the caller calls stop. The end of ctx does not stop it, because
// the other components still change orders while they stop.
func (a *app) startNotifier(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := a.notifier.Run(ctx); err != nil {
			a.log.Warn("the last notifications are lost; open pages show the changes after their next reload", "error", err)
		}
	}()
	return func() {
		cancel()
		<-ended
	}
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
	handler, err := a.handler(&c.serveOptions)
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
