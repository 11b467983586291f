package order

import (
	"context"
	_ "embed"

	"example.com/shop/internal/reconcile"
)

// The statements for the worker and the reconciler.
var (
	//go:embed cancel_due.sql
	cancelDueSQL string
	//go:embed free.sql
	freeSQL string
)

// Rows describes the orders that time out, whose shared rows are products. To time out an order means to cancel it.
func (s *Service) Rows() reconcile.Rows {
	return reconcile.Rows{Table: "orders", Due: "due_at", TimeOut: cancelDueSQL, Free: freeSQL, Observe: s.observe}
}

// observe counts and logs the verdicts on orders (see [reconcile.Verdict]), and notifies the customers of the orders
// that were cancelled.
func (s *Service) observe(ctx context.Context, verdicts []reconcile.Verdict, actor reconcile.Actor) {
	cancelled := 0
	for _, v := range verdicts {
		if v.State != reconcile.TimedOut {
			continue
		}
		cancelled++
		s.metrics.cancelled.WithLabelValues(v.Reason).Inc()
		if v.Reason == string(ByTimeout) {
			s.metrics.lateness.WithLabelValues(string(actor)).Observe(v.Late.Seconds())
		}
		s.Notify(v.Owner, v.ID)
		s.log.DebugContext(ctx, "unpaid order cancelled", "order_id", v.ID, "reason", v.Reason, "late", v.Late, "actor", actor)
	}
	if cancelled > 0 {
		s.log.InfoContext(ctx, "unpaid orders cancelled", "orders", cancelled, "actor", actor)
	}
}
