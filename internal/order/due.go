package order

import (
	"context"
	_ "embed"

	"example.com/shop/internal/timeout"
)

// The statements for the worker and the reconciler.
var (
	//go:embed cancel_due.sql
	cancelDueSQL string
	//go:embed free.sql
	freeSQL string
)

// Rows describes the orders that time out, whose shared rows are products. To time out an order means to cancel it.
func (s *Service) Rows() timeout.Rows {
	return timeout.Rows{Table: "orders", Due: "due_at", TimeOut: cancelDueSQL, Free: freeSQL, Observe: s.observe}
}

// observe counts and logs the orders that were cancelled, and notifies their customers.
func (s *Service) observe(ctx context.Context, results []timeout.Result, actor timeout.Caller) {
	cancelled := 0
	for _, result := range results {
		if result.State != timeout.TimedOut {
			continue
		}
		cancelled++
		s.metrics.cancelled.WithLabelValues(result.Reason).Inc()
		if result.Reason == string(ByTimeout) {
			s.metrics.lateness.WithLabelValues(string(actor)).Observe(result.Late.Seconds())
		}
		s.Notify(result.Owner, result.ID)
		s.log.DebugContext(ctx, "unpaid order cancelled",
			"order_id", result.ID, "reason", result.Reason, "late", result.Late, "actor", actor)
	}
	if cancelled > 0 {
		s.log.InfoContext(ctx, "unpaid orders cancelled", "orders", cancelled, "actor", actor)
	}
}
