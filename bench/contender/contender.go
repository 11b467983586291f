// Package contender declares what each way to time out orders implements. The packages below it are the ways.
package contender

import (
	"context"
	"database/sql"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/timeout"
)

// Contender is one way to time out orders. Its methods may be called concurrently.
type Contender interface {
	// Schedule arranges that each of the orders is cancelled when it is due. The orders are committed, and each is in
	// the slice once. An order that is scheduled already gets a new due time, earlier or later.
	Schedule(ctx context.Context, orders []Order) error
	// Run cancels orders until ctx ends, and then returns nil within a second. It calls ready once, when it can cancel
	// orders. If a server does not answer, Run keeps trying.
	Run(ctx context.Context, ready func()) error
}

// Cleaner is a [Contender] that keeps something outside of Redis and of the tables of the shop.
type Cleaner interface {
	// Clean removes everything that earlier runs left. It is called before Run and Schedule.
	Clean(ctx context.Context) error
}

// Placer is a [Contender] whose documentation has a way to place an order so that it cannot be committed without being
// scheduled. The orders of another contender are committed first, and then scheduled.
type Placer interface {
	// Place commits the orders with [Env.Place], and schedules them.
	Place(ctx context.Context, orders []Order) error
}

// Order is an order that must be cancelled when it is due. Due has a reading of the monotonic clock, so time.Until is
// exact.
type Order struct {
	ID  string
	Due time.Time
}

// Left returns the time until the order is due, at least 0.
func (o Order) Left() time.Duration { return max(time.Until(o.Due), 0) }

// CeilMilli returns the milliseconds from 1970 until the order is due, rounded up, so that the order is not early.
func (o Order) CeilMilli() int64 {
	return o.Due.Add(time.Millisecond - time.Nanosecond).UnixMilli()
}

// Env is what a contender works with.
type Env struct {
	// Cancel cancels those of the orders that are due, in one transaction, as the shop does: status, time, actor and
	// stock. It is idempotent. It returns the orders that came too early, each with its due time; the contender must
	// schedule them again.
	Cancel func(ctx context.Context, ids ...string) (early []Order, err error)

	// Place commits those of the orders that are not in the table yet, in one transaction. Unless also is nil, Place
	// calls it in the same transaction.
	Place func(ctx context.Context, orders []Order, also func(ctx context.Context, tx pgx.Tx) error) error

	// Handle and Orders are for the shop's own way: Handle does for its worker what Cancel does for the others, and
	// Orders is the shop's table of orders.
	Handle delay.Handler
	Orders *timeout.Table

	DB          *sql.DB // the shop's database
	DatabaseURL string
	Redis       redis.UniversalClient
	RedisURL    string
	RabbitURL   string // amqp://…; empty if no contender of the run needs RabbitMQ
	Process     string // a name that is different for each process that runs at the same time, and kept after a restart
	Log         *slog.Logger
}

// Server is a server that a contender needs besides PostgreSQL.
type Server string

// The servers.
const (
	Redis  Server = "Redis"
	Rabbit Server = "RabbitMQ"
)

// Info describes a contender.
type Info struct {
	Name     string   // short: the first column of the tables
	Way      string   // how it works, in one sentence
	Source   string   // the URL of the documentation or of the text that it follows
	Settings string   // the settings that differ from the defaults, or that the source does not give
	Servers  []Server // the servers that it needs besides PostgreSQL
	// Cannot has the workloads that it cannot do, by name, each with the reason.
	Cannot map[string]string
	// Period is the time between two looks at the orders, if it is so long that each workload runs only once.
	Period time.Duration
	// Lease is the time after which an order whose cancellation has not ended is delivered again, according to the
	// contender's documentation; 0 if it is not delivered again while the process lives.
	Lease time.Duration
	// Loads reports whether Run reads the pending orders from the table, so that nobody needs to schedule them again.
	Loads bool
	// Ahead is how long before its deadline an order must be scheduled to be treated like one with a long delay.
	Ahead time.Duration

	New func(ctx context.Context, env Env) (Contender, error)
}

// The names of workloads that a contender may not be able to do.
const (
	Reschedule = "reschedule" // a deadline that moves
	Memory     = "memory"     // of the store beside the table
)

// Workers is the number of goroutines that cancel orders, unless the source of a contender gives a number.
const Workers = 8

// Batch is the most orders in one transaction, unless the source of a contender gives a number.
const Batch = 500

// Repeat calls f until ctx ends. After an error it logs the first of a series, and waits a second.
func Repeat(ctx context.Context, log *slog.Logger, f func(ctx context.Context) error) {
	failing := false
	for ctx.Err() == nil {
		err := f(ctx)
		if err == nil {
			failing = false
			continue
		}
		if !failing && ctx.Err() == nil {
			log.Warn("the contender cannot work; it keeps trying", "error", err)
		}
		failing = true
		Sleep(ctx, time.Second)
	}
}

// Each calls f for each item, from up to n goroutines. It returns the first error, after which it begins no more calls.
func Each[T any](ctx context.Context, n int, items []T, f func(ctx context.Context, item T) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(n)
	for _, item := range items {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return f(ctx, item)
		})
	}
	return group.Wait()
}

// Stop calls stop, and returns when it has returned or after the limit.
func Stop(limit time.Duration, stop func()) {
	stopped := make(chan struct{})
	go func() {
		stop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(limit):
	}
}

// Sleep returns when d has passed or when ctx has ended.
func Sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
