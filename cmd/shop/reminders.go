package main

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
)

// reminders holds the components of the reminders of orders. They are best effort, so they have no outbox and no
// reconciler, and they are not among the [kinds].
type reminders struct {
	queue    *delay.Queue
	schedule *order.Reminders
	worker   *delay.Worker // set by work, because its handler is a method of the service of orders
}

func (a *app) newReminders(o *serveOptions) (*reminders, error) {
	queue, err := delay.NewQueue(a.rdb, delay.Config{Kind: order.RemindKind, Shards: o.QueueShards})
	if err != nil {
		return nil, usageError{err}
	}
	return &reminders{queue: queue, schedule: order.NewReminders(queue, a.log, a.metrics)}, nil
}

// work creates the worker. a.orders must be set.
func (r *reminders) work(a *app, drain time.Duration) {
	r.worker = delay.NewWorker(r.queue, a.orders.Remind, delay.WorkerConfig{Loops: 1, Drain: drain}, a.log, a.metrics)
}

// runWorkers runs the workers of all kinds and that of the reminders, until ctx ends.
func (a *app) runWorkers(ctx context.Context) error {
	workers, ctx := errgroup.WithContext(ctx)
	workers.Go(func() error { return a.kinds.runWorkers(ctx) })
	workers.Go(func() error { return a.reminders.worker.Run(ctx) })
	return workers.Wait()
}
