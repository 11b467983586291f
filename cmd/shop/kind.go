package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/reconcile"
)

// kind holds the components of one kind of task: the queue; the outbox, publisher and relay, which fill the queue; the
// worker; and the reconciler.
type kind struct {
	queue      *delay.Queue
	outbox     *delay.Outbox
	publisher  *delay.Publisher
	relay      *delay.Relay
	worker     *delay.Worker
	reconciler *reconcile.Reconciler
}

// domain is the part of a kind that a domain package supplies: the handler of the worker, and the table of the
// reconciler. The configuration of the worker may be empty.
type domain struct {
	handle delay.Handler
	worker delay.WorkerConfig
	table  reconcile.Table
}

// newKind returns the components of a kind of task that fill its queue. A domain package gets the publisher, because it
// publishes the tasks that its rows need. [app.addKind] adds the other components.
func (a *app) newKind(name string, o *serveOptions) (k *kind, err error) {
	k = &kind{outbox: delay.NewOutbox(a.db, name)}
	if k.queue, err = delay.NewQueue(a.rdb, delay.Config{Kind: name, Shards: o.QueueShards}); err != nil {
		return nil, usageError{err}
	}
	k.publisher = delay.NewPublisher(k.queue, k.outbox, delay.PublisherConfig{}, a.log, a.metrics)
	k.relay = delay.NewRelay(k.queue, k.outbox, delay.RelayConfig{}, a.log, a.metrics)
	a.metrics.MustRegister(delay.NewDepthCollector(k.queue, k.outbox))
	return k, nil
}

// addKind completes a kind with the components that empty its queue, and adds it to the process.
func (a *app) addKind(k *kind, o *serveOptions, workerDrain time.Duration, d domain) (err error) {
	d.worker.Drain = workerDrain
	k.worker = delay.NewWorker(k.queue, d.handle, d.worker, a.log, a.metrics)
	k.reconciler, err = reconcile.New(a.db, d.table, k.queue,
		reconcile.Config{Schedule: o.ReconcileSchedule, Lookahead: o.ReconcileLookahead}, a.log, a.metrics)
	if err != nil {
		return usageError{err}
	}
	a.kinds = append(a.kinds, k)
	return nil
}

// kinds holds all kinds of task of a process. Its methods combine the results of all kinds.
type kinds []*kind

// each calls do for each kind. It returns one error of one line with all errors, each with its kind.
func (all kinds) each(ctx context.Context, do func(*kind, context.Context) error) error {
	var errs []error
	for _, k := range all {
		if err := do(k, ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", k.queue.Kind(), err))
		}
	}
	return oneLine(errs...)
}

// runWorkers runs the workers of all kinds until ctx ends.
func (all kinds) runWorkers(ctx context.Context) error {
	workers, ctx := errgroup.WithContext(ctx)
	for _, k := range all {
		workers.Go(func() error { return k.worker.Run(ctx) })
	}
	return workers.Wait()
}

// runReconcilers runs the reconcilers of all kinds until ctx ends.
func (all kinds) runReconcilers(ctx context.Context) error {
	reconcilers := make([]*reconcile.Reconciler, len(all))
	for i, k := range all {
		reconcilers[i] = k.reconciler
	}
	return reconcile.Run(ctx, reconcilers...)
}

// depth counts the tasks of all kinds.
func (all kinds) depth(ctx context.Context) (sum delay.Depth, err error) {
	for _, k := range all {
		d, err := k.queue.Depth(ctx)
		if err != nil {
			return delay.Depth{}, err
		}
		sum.Scheduled += d.Scheduled
		sum.Due += d.Due
		sum.Leased += d.Leased
		sum.Dead += d.Dead
		sum.OldestDue = max(sum.OldestDue, d.OldestDue)
	}
	return sum, nil
}

// backlog returns the number of messages in the outboxes of all kinds, and the age of the oldest.
func (all kinds) backlog(ctx context.Context) (count int64, oldest time.Duration, err error) {
	for _, k := range all {
		n, age, err := k.outbox.Backlog(ctx)
		if err != nil {
			return 0, 0, err
		}
		count += n
		oldest = max(oldest, age)
	}
	return count, oldest, nil
}

// sweep sweeps the tables of all kinds, and returns the sum of the reports.
func (all kinds) sweep(ctx context.Context) (reconcile.Report, error) {
	reports := make([]reconcile.Report, len(all))
	for i, k := range all {
		var err error
		if reports[i], err = k.reconciler.Sweep(ctx); err != nil {
			return reconcile.Report{}, err
		}
	}
	return reconcile.Sum(reports...), nil
}

// lastSweep returns the sum of the reports of the kinds' last sweeps, or nil if some kind has had no sweep yet.
func (all kinds) lastSweep(ctx context.Context) (*reconcile.Report, error) {
	reports := make([]reconcile.Report, len(all))
	for i, k := range all {
		last, err := k.reconciler.Last(ctx)
		if last == nil || err != nil {
			return nil, err
		}
		reports[i] = *last
	}
	sum := reconcile.Sum(reports...)
	return &sum, nil
}

// bound returns how long past its deadline a row of any kind may be pending.
func (all kinds) bound() (longest time.Duration) {
	for _, k := range all {
		longest = max(longest, k.reconciler.Bound())
	}
	return longest
}

// deadLetters returns up to limit dead letters of all kinds, the latest first. It skips the first offset dead letters.
func (all kinds) deadLetters(ctx context.Context, offset, limit int) ([]delay.DeadLetter, error) {
	if len(all) == 1 { // the queue reads the errors of the page only
		return all[0].queue.DeadLetters(ctx, offset, limit)
	}
	var letters []delay.DeadLetter
	for _, k := range all {
		some, err := k.queue.DeadLetters(ctx, 0, offset+limit)
		if err != nil {
			return nil, err
		}
		letters = append(letters, some...)
	}
	slices.SortStableFunc(letters, func(a, b delay.DeadLetter) int {
		return cmp.Or(b.BuriedAt.Compare(a.BuriedAt), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID))
	})
	return letters[min(offset, len(letters)):min(offset+limit, len(letters))], nil
}

// redrive makes a dead letter of the named kind due now, and reports whether there was one.
func (all kinds) redrive(ctx context.Context, name, id string) (bool, error) {
	for _, k := range all {
		if k.queue.Kind() == name {
			return k.queue.Redrive(ctx, id)
		}
	}
	return false, nil
}
