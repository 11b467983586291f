// Package app holds what the parts of a service share in one process: the connections, the log, the metrics, the HTTP
// router and the kinds of task.
//
// A part is a feature that a team can leave out, such as pages. [Connect] connects to the servers, and [New] returns a
// [Process] without parts. Each part then adds itself: its kinds of task with [Process.NewKind], and everything else
// with [Process.Add], whose argument, a [Part], lists what a part can have. [Process.Run] runs the parts. This package
// depends on none of them.
//
// It also has the commands that every program of this kind has, serve, migrate, reconcile, doctor, health and
// version, with their options. A program embeds these options in its own commands, beside the options of its parts.
// Every option is a flag and an environment variable, whose name follows from the flag: --http-addr and
// SHOP_HTTP_ADDR.
package app

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/rest"
	"example.com/shop/migrations"
)

// The roles of a process. A process has one or more of them.
const (
	API        = "api"        // serves the routes of the parts
	Relay      = "relay"      // publishes the outbox rows that the fast path has left
	Worker     = "worker"     // handles tasks
	Reconciler = "reconciler" // compares the tables with the queues, and repairs
)

// Config configures a process.
type Config struct {
	Name    string // the application_name of the sessions in PostgreSQL, and the prefix of the metrics
	Version string // of the program, for /healthz

	DatabaseURL   string
	DatabaseConns int // the most connections to PostgreSQL; at least 2
	RedisURL      string
	QueueShards   int // of each kind's queue; the same for all processes

	// SessionSettings are settings of the sessions in PostgreSQL, besides those of package postgres.
	SessionSettings map[string]string

	// Migrations are the sets of the program's other modules, in their order. The core's set comes before them.
	Migrations []migrations.Set

	Roles     []string
	Reconcile reconcile.Config
	Drain     time.Duration // how long the process serves after the context of Run has ended

	// OpsGuard lets operators pass to the operators' API, and rejects all others. nil: the process has no such API.
	OpsGuard gin.HandlerFunc
	Tracer   Tracer // nil: nothing is traced
}

// Connections are the connections of a process.
type Connections struct {
	DB    *gorm.DB // its sessions have the settings of package postgres
	Pool  *sql.DB  // the connections of DB
	Redis redis.UniversalClient

	newer []string // a text for each set of which the database has a newer schema than the binary
}

// Close closes the connections.
func (c *Connections) Close() {
	if c.Redis != nil { // otherwise Connect has failed
		c.Redis.Close()
	}
	c.Pool.Close()
}

// Process holds what the parts of one process share. The fields are for the parts, which do not change them.
type Process struct {
	*Connections

	Log      *slog.Logger
	Metrics  prometheus.Registerer // with the prefix of the process
	Registry *prometheus.Registry  // gathers all metrics of the process
	Kinds    Kinds                 // in the order in which the parts have added them

	cfg Config

	router   *gin.Engine
	ops      *gin.RouterGroup
	outer    []func(http.Handler) http.Handler
	streams  map[string]bool // the routes whose answers do not end
	contract [][]byte        // the pieces of the parts

	relations  []string
	invariants []Invariants
	checks     []Check
	figures    map[string]string

	components []func(context.Context) error // of the roles of the process, without those that are last
	workers    []*delay.Worker
	last       errgroup.Group // runs the components that are last
	runLast    func(run func(context.Context) error)
	endLast    context.CancelFunc
	closers    []func()
	stopping   atomic.Bool // the process received a signal to stop
}

// Connect connects to the database and to Redis. It returns an error if the database is down,
// or if its schema lacks a migration of the binary. It accepts a newer schema: during a rolling update processes of
// the older version continue to run, and after a rollback they start. Redis may be down.
func Connect(ctx context.Context, cfg Config, log *slog.Logger) (*Connections, error) {
	db, err := OpenDatabase(ctx, cfg.DatabaseURL, cfg.Name, cfg.DatabaseConns, cfg.SessionSettings)
	if err != nil {
		return nil, err
	}
	pool, _ := db.DB() // fails only without a pool
	c := &Connections{DB: db, Pool: pool}
	c.newer, err = migrations.Check(ctx, pool, cfg.Migrations...)
	for _, text := range c.newer {
		log.Warn("the database's schema is newer than this binary's, as in a rolling update; "+
			"this process works with it", "found", text)
	}
	if err == nil {
		c.Redis, err = delay.Connect(cfg.RedisURL)
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// New returns a process without parts. Its Close closes the connections.
func New(c *Connections, cfg Config, log *slog.Logger) *Process {
	p := &Process{
		Connections: c, cfg: cfg, Log: log, Registry: prometheus.NewRegistry(),
		streams: map[string]bool{}, figures: map[string]string{},
	}
	p.Metrics = prometheus.WrapRegistererWithPrefix(cfg.Name+"_", p.Registry)
	last, endLast := context.WithCancel(context.Background())
	p.endLast = endLast
	p.runLast = func(run func(context.Context) error) { p.last.Go(func() error { return run(last) }) }
	p.measure()
	p.newRouter()
	return p
}

// OpenDatabase is [postgres.Open]. If no connection can be made, its error names the option with the address.
func OpenDatabase(
	ctx context.Context, databaseURL, application string, conns int, settings map[string]string,
) (*gorm.DB, error) {
	db, err := postgres.Open(ctx, databaseURL, application, conns, settings)
	if errors.As(err, new(*pgconn.ConnectError)) {
		err = fmt.Errorf("%w: is PostgreSQL running, and is %s right?", err, OptionName("database-url"))
	}
	return db, err
}

// Close ends the components that are last, and closes the connections. Call it after Run has returned.
func (p *Process) Close() {
	p.endLast()
	if err := p.last.Wait(); err != nil {
		p.Log.Warn("what the process did last may not be passed on", "error", err)
	}
	for _, c := range slices.Backward(p.closers) {
		c()
	}
	p.Connections.Close()
}

// Has reports whether the process has a role.
func (p *Process) Has(role string) bool { return slices.Contains(p.cfg.Roles, role) }

// Run serves on ln and runs what the parts have added, until ctx ends and the drain is over. If a component fails, Run
// stops the others and returns the error.
func (p *Process) Run(ctx context.Context, ln net.Listener) error {
	handler, err := p.Handler()
	if err != nil {
		return err
	}
	ctx, cancel := p.drained(ctx)
	defer cancel()
	components, ctx := errgroup.WithContext(ctx)
	components.Go(func() error { return rest.Serve(ctx, ln, handler, p.Log) })
	for _, run := range p.components {
		components.Go(func() error { return run(ctx) })
	}
	if p.Has(Worker) {
		components.Go(func() error { return p.RunWorkers(ctx) })
	}
	if p.Has(Reconciler) {
		components.Go(func() error { return p.Kinds.runReconcilers(ctx) })
	}
	return components.Wait()
}

// RunWorkers runs all workers of the process until ctx ends. [Process.Run] calls it in a process with the role Worker.
func (p *Process) RunWorkers(ctx context.Context) error {
	workers, ctx := errgroup.WithContext(ctx)
	for _, w := range p.workers {
		workers.Go(func() error { return w.Run(ctx) })
	}
	return workers.Wait()
}

// drained returns a context that ends later than ctx, by the duration Drain. In the meantime the process serves as
// before, but /readyz tells load balancers to send it no more requests.
func (p *Process) drained(ctx context.Context) (context.Context, context.CancelFunc) {
	drained, cancel := context.WithCancel(context.WithoutCancel(ctx))
	forget := context.AfterFunc(ctx, func() {
		defer cancel()
		p.stopping.Store(true)
		p.Log.Info("stopping: /readyz answers 503 from now on", "drain", p.cfg.Drain.String())
		select {
		case <-time.After(p.cfg.Drain):
		case <-drained.Done(): // a component has failed
		}
	})
	return drained, func() { forget(); cancel() }
}
