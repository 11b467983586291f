package main

import (
	"context"
	"fmt"
	"time"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/reconcile"
)

// newReconciler joins the orders and their queue in a reconciler, which knows neither.
func newReconciler(a *app, o reconcileOptions) (*reconcile.Reconciler, error) {
	r, err := reconcile.New(a.db, orderTable{a.store, a.orders}, cancelQueue{a.queue},
		reconcile.Config{Schedule: o.ReconcileSchedule, Lookahead: o.ReconcileLookahead}, a.log, a.registry)
	if err != nil {
		return nil, usageError{err}
	}
	return r, nil
}

// orderTable is the orders as a [reconcile.Table]: reads from the store, cancellations from the service,
// which counts them.
type orderTable struct {
	*order.Store
	orders *order.Service
}

func (t orderTable) TimeOut(ctx context.Context, ids []string) (done, held int, err error) {
	done, held, err = t.orders.TimeOut(ctx, ids)
	if order.Unavailable(err) && !order.TimedOut(err) { // some of the orders may take long, and others not
		err = fmt.Errorf("%w: %w", reconcile.ErrUnavailable, err)
	}
	return done, held, err
}

// cancelQueue is the cancel tasks as a [reconcile.Queue]. Where the two rooms differ is only in the types
// of what they say.
type cancelQueue struct {
	*delay.Queue
}

func (q cancelQueue) Locate(ctx context.Context, ids []string) ([]reconcile.Place, error) {
	found, err := q.Queue.Locate(ctx, ids)
	if err != nil {
		return nil, err
	}
	places := make([]reconcile.Place, len(found))
	for i, p := range found {
		places[i] = reconcile.Place{
			Scheduled: p.State == delay.Scheduled, Leased: p.State == delay.Leased, Dead: p.State == delay.Dead,
			Failed: p.Attempts > 0, Left: p.Left,
		}
	}
	return places, nil
}

func (q cancelQueue) Schedule(ctx context.Context, ids []string, left []time.Duration) error {
	msgs := make([]delay.Message, len(ids))
	for i, id := range ids {
		msgs[i] = delay.In(id, left[i])
	}
	return q.Queue.Schedule(ctx, msgs...)
}
