package order

import (
	"context"
	"time"

	"example.com/shop/internal/delay"
)

// newTimeouts returns the timeouts of the orders, whose shared rows are products.
func (s *Service) newTimeouts() *delay.Timeouts {
	return delay.NewTimeouts(CancelKind, delay.TimeoutTable{
		TimeOut: s.store.cancelDue, Split: s.store.splitByLocks, Observe: s.observe,
	}, s.log)
}

// CancelDue is the [delay.Handler] of [CancelKind]. It cancels those of the tasks' orders that are pending and past
// their due times.
func (s *Service) CancelDue(ctx context.Context, tasks []delay.Task) ([]delay.Outcome, error) {
	return s.timeouts.Handle(ctx, tasks)
}

// TimeOut cancels, for the reconciler, those of the orders that are pending and past their due times. See
// [delay.Timeouts.TimeOut].
func (s *Service) TimeOut(ctx context.Context, ids []string) (done, held int, err error) {
	return s.timeouts.TimeOut(ctx, ids)
}

// Pending returns a page of at most limit pending orders, sorted by due time, with the time left to each due time by
// the database's clock. It returns only orders whose due times are at most within from now. A negative within selects
// the orders that are overdue by at least that much. The largest duration selects all. after is "" for the first page,
// and then the next of the previous page. next is "" after the last page.
func (s *Service) Pending(
	ctx context.Context, after string, within time.Duration, limit int,
) (page []delay.Message, next string, err error) {
	return PendingPage(ctx, s.store.db, pendingSQL, after, within, limit)
}

// Unknown returns those of the ids for which there is no order of any status.
func (s *Service) Unknown(ctx context.Context, ids []string) ([]string, error) {
	return s.store.unknown(ctx, ids)
}

// outcomes maps the states of rows to the values of the label outcome of shop_cancel_outcomes_total.
var outcomes = map[delay.RowState]string{
	delay.TimedOut:     "cancelled",
	delay.AlreadyEnded: "terminal",
	delay.Gone:         "gone",
	delay.NotDue:       "not_due",
	delay.Locked:       "locked",
	delay.Blocked:      "blocked",
}

// observe counts and logs the verdicts on orders, and notifies the customers of the cancelled ones.
func (s *Service) observe(ctx context.Context, verdicts []delay.Verdict, by delay.Actor) {
	cancelled, blocked := 0, 0
	for _, v := range verdicts {
		s.metrics.outcomes.WithLabelValues(outcomes[v.State]).Inc()
		switch v.State {
		case delay.TimedOut:
			cancelled++
			s.metrics.cancelled.WithLabelValues(v.Reason).Inc()
			if v.Reason == string(ByTimeout) {
				s.metrics.lateness.WithLabelValues(string(by)).Observe(v.Late.Seconds())
			}
			s.Notify(v.Owner, v.ID)
			s.log.DebugContext(ctx, "unpaid order cancelled", "order_id", v.ID, "reason", v.Reason, "late", v.Late, "actor", by)
		case delay.Blocked:
			blocked++
		}
	}
	if blocked > 0 {
		s.log.WarnContext(ctx, "orders that may be due wait for a product that another session has locked",
			"orders", blocked)
	}
	if cancelled > 0 {
		s.log.InfoContext(ctx, "unpaid orders cancelled", "orders", cancelled, "actor", by)
	}
}
