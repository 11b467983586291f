package order

import (
	"context"
	_ "embed"

	"example.com/shop/internal/deadline"
)

// The statements for the worker and the reconciler.
var (
	//go:embed cancel_due.sql
	cancelDueSQL string
	//go:embed free.sql
	freeSQL string
	//go:embed pending.sql
	pendingSQL string
)

// newTable returns the table of orders, whose shared rows are products. To time out an order means to cancel it: the
// method Handle of the table does so for the tasks of [CancelKind].
func (s *Service) newTable() *deadline.Table {
	return deadline.NewTable(s.store.db, CancelKind, deadline.Statements{
		TimeOut: cancelDueSQL, Free: freeSQL, Pending: pendingSQL,
	}, s.observe, s.log)
}

// outcomes maps the states of rows to the values of the label outcome of shop_cancel_outcomes_total.
var outcomes = map[deadline.RowState]string{
	deadline.TimedOut:     "cancelled",
	deadline.AlreadyEnded: "terminal",
	deadline.Gone:         "gone",
	deadline.NotDue:       "not_due",
	deadline.Locked:       "locked",
	deadline.Blocked:      "blocked",
}

// observe counts and logs the verdicts on orders, and notifies the customers of the orders that were cancelled.
func (s *Service) observe(ctx context.Context, verdicts []deadline.Verdict, actor deadline.Actor) {
	cancelled := 0
	for _, v := range verdicts {
		s.metrics.outcomes.WithLabelValues(outcomes[v.State]).Inc()
		if v.State != deadline.TimedOut {
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
