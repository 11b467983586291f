// Package ours is the shop's own way, assembled as in cmd/shop: an outbox with a publisher and a relay, a queue of
// Redis sorted sets with leases, a worker that claims batches and sleeps until the next task is due, and a reconciler
// that compares the table with the queue. All components have their defaults and run in one process.
package ours

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"example.com/shop/bench/contender"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/reconcile"
)

// Name is the name of the contender.
const Name = "ours"

// Contenders has the only variant.
var Contenders = []contender.Info{{
	Name:     Name,
	Way:      "ZSET with leases, claimed in batches by a worker that sleeps until the next due time; outbox; reconciler.",
	Source:   "the README.md of the repository",
	Settings: "defaults",
	Servers:  []contender.Server{contender.Redis},
	// The worker renews a lease of 2.5 s until a quarter of it after the handler's timeout.
	Lease: 8*time.Second + 2500*time.Millisecond*5/4,
	New: func(_ context.Context, env contender.Env) (contender.Contender, error) {
		return newShop(env)
	},
}}

// shop holds the components of the kind of task that cancels orders.
type shop struct {
	queue      *delay.Queue
	publisher  *delay.Publisher
	relay      *delay.Relay
	worker     *delay.Worker
	reconciler *reconcile.Reconciler
	place      func(context.Context, []contender.Order, func(context.Context, pgx.Tx) error) error // see [contender.Env]
}

func newShop(env contender.Env) (*shop, error) {
	queue, err := delay.NewQueue(env.Redis, order.CancelKind, 1)
	if err != nil {
		return nil, err
	}
	outbox, metrics := delay.NewOutbox(env.DB, order.CancelKind), prometheus.NewRegistry()
	reconciler, err := reconcile.New(env.DB, order.CancelKind, env.Orders, queue, reconcile.Config{}, env.Log, metrics)
	if err != nil {
		return nil, err
	}
	return &shop{
		queue:      queue,
		publisher:  delay.NewPublisher(queue, outbox, env.Log, metrics),
		relay:      delay.NewRelay(queue, outbox, env.Log, metrics),
		worker:     delay.NewWorker(queue, env.Handle, delay.WorkerConfig{}, env.Log, metrics),
		reconciler: reconciler,
		place:      env.Place,
	}, nil
}

// Schedule adds the orders to the queue directly, because the benchmark's orders have no outbox rows.
func (s *shop) Schedule(ctx context.Context, orders []contender.Order) error {
	msgs := make([]delay.Message, len(orders))
	for i, o := range orders {
		msgs[i] = delay.In(o.ID, o.Left())
	}
	return s.queue.Schedule(ctx, msgs...)
}

// outboxSQL writes the outbox rows of orders, and returns the time until each is due by PostgreSQL's clock, as the
// shop's statement that places orders does.
const outboxSQL = `
	WITH owed AS (
		INSERT INTO outbox (kind, task_id, due_at)
		SELECT $1, id::text, due_at FROM orders WHERE id = ANY ($2::uuid[])
		RETURNING task_id, due_at
	)
	SELECT task_id, greatest(extract(epoch FROM due_at - clock_timestamp()) * 1e9, 0)::bigint FROM owed`

// Place commits the orders together with their outbox rows, and then publishes their tasks.
func (s *shop) Place(ctx context.Context, orders []contender.Order) error {
	ids := make([]string, len(orders))
	for i, o := range orders {
		ids[i] = o.ID
	}
	var msgs []delay.Message
	err := s.place(ctx, orders, func(ctx context.Context, tx pgx.Tx) error {
		rows, err := tx.Query(ctx, outboxSQL, order.CancelKind, ids)
		if err != nil {
			return err
		}
		msgs, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (delay.Message, error) {
			var id string
			var left time.Duration
			err := row.Scan(&id, &left)
			return delay.In(id, left), err
		})
		return err
	})
	if err == nil {
		s.publisher.Publish(ctx, msgs...) // the relay repeats it after an error
	}
	return err
}

// Publish is the fast path of orders that the service has placed, with their outbox rows.
func (s *shop) Publish(ctx context.Context, msgs ...delay.Message) bool {
	return s.publisher.Publish(ctx, msgs...)
}

// Run runs all components. It is ready when the first sweep has ended, which adds the orders that are due soon to an
// empty Redis.
func (s *shop) Run(ctx context.Context, ready func()) error {
	components, ctx := errgroup.WithContext(ctx)
	for _, run := range []func(context.Context) error{s.publisher.Run, s.relay.Run, s.worker.Run, s.reconcile} {
		components.Go(func() error { return run(ctx) })
	}
	components.Go(func() error {
		for ctx.Err() == nil {
			if intact, err := delay.Intact(ctx, s.queue); err == nil && intact[0] {
				ready()
				return nil
			}
			contender.Sleep(ctx, 10*time.Millisecond)
		}
		return nil
	})
	return components.Wait()
}

func (s *shop) reconcile(ctx context.Context) error { return reconcile.Run(ctx, s.reconciler) }
