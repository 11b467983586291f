package order

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
)

// lockedRetry is when to ask again about an order that someone holds, to pay or cancel it.
const lockedRetry = 100 * time.Millisecond

// CancelDue is the [delay.Handler] of [CancelKind]: it cancels those of the tasks' orders that are pending
// past their deadlines. An order that is not due yet is asked for again when it is. A database that is
// out of order is no task's fault: all are asked for again in about a second, uncounted. Any other error
// has the worker find the task that causes it.
func (s *Service) CancelDue(ctx context.Context, tasks []delay.Task) ([]delay.Outcome, error) {
	ids := make([]uuid.UUID, 0, len(tasks))
	for _, task := range tasks {
		if id, err := parseID(task.ID); err == nil {
			ids = append(ids, id)
		}
	}
	verdicts, err := s.timeOut(ctx, ids, Worker)
	if err != nil && unavailable(err) {
		s.log.WarnContext(ctx, "orders that may be due wait for the database", "orders", len(tasks), "error", err)
		return postponed(ctx, len(tasks)), nil
	}
	if err != nil {
		return nil, err
	}

	byID := make(map[string]verdict, len(verdicts))
	for _, v := range verdicts {
		byID[v.ID.String()] = v
	}
	outcomes := make([]delay.Outcome, len(tasks))
	for i, task := range tasks {
		v, known := byID[task.ID]
		if !known { // not the id of any order
			v.Outcome = gone
			s.metrics.outcomes.WithLabelValues(gone).Inc()
		}
		if v.Outcome == gone {
			s.log.WarnContext(ctx, "task of no order dropped", "order_id", task.ID)
		}
		outcomes[i] = v.taskOutcome()
	}
	return outcomes, nil
}

// postponed gives every task back: at once if the worker stops, so that another one can take them.
func postponed(ctx context.Context, tasks int) []delay.Outcome {
	outcomes := make([]delay.Outcome, tasks)
	for i := range outcomes {
		if !errors.Is(ctx.Err(), context.Canceled) {
			outcomes[i] = delay.RetryIn(aSecond())
		} else {
			outcomes[i] = delay.RetryIn(0)
		}
	}
	return outcomes
}

// aSecond is about one, so that not all come back at once.
func aSecond() time.Duration { return 500*time.Millisecond + rand.N(time.Second) }

// CancelOverdue cancels up to limit orders that are pending longer than grace past their deadlines, without
// the help of any queue, and returns how many. An order that cannot be cancelled does not keep the
// others from it; the error is its own.
func (s *Service) CancelOverdue(ctx context.Context, grace time.Duration, limit int) (int, error) {
	ids, err := s.store.overdue(ctx, grace, limit)
	if err != nil || len(ids) == 0 {
		return 0, err
	}
	return s.cancelOverdue(ctx, ids)
}

func (s *Service) cancelOverdue(ctx context.Context, ids []uuid.UUID) (int, error) {
	verdicts, err := s.timeOut(ctx, ids, Reconciler)
	switch {
	case err == nil:
		return count(verdicts, cancelled), nil
	case unavailable(err):
		return 0, err
	case len(ids) == 1:
		return 0, fmt.Errorf("order %s: %w", ids[0], err)
	}
	half := len(ids) / 2
	n1, err1 := s.cancelOverdue(ctx, ids[:half])
	n2, err2 := s.cancelOverdue(ctx, ids[half:])
	return n1 + n2, errors.Join(err1, err2)
}

// timeOut cancels those of the orders that are due and counts what became of each.
func (s *Service) timeOut(ctx context.Context, ids []uuid.UUID, actor Actor) ([]verdict, error) {
	verdicts, err := s.store.cancelDue(ctx, ids, actor)
	if lockTimedOut(err) {
		verdicts, err = s.store.cancelFree(ctx, ids, actor)
	}
	if err != nil {
		return nil, err
	}
	for _, v := range verdicts {
		s.metrics.outcomes.WithLabelValues(v.Outcome).Inc()
		if v.Outcome == cancelled {
			s.metrics.cancelled.WithLabelValues(string(ByTimeout)).Inc()
			s.metrics.lateness.WithLabelValues(string(actor)).Observe(v.duration().Seconds())
			s.changes.announce(v.CustomerID, v.ID)
			s.log.DebugContext(ctx, "unpaid order cancelled", "order_id", v.ID, "late", v.duration(), "actor", actor)
		}
	}
	if n := count(verdicts, blocked); n > 0 {
		s.log.WarnContext(ctx, "orders that may be due wait for a product that somebody has locked", "orders", n)
	}
	if n := count(verdicts, cancelled); n > 0 {
		s.log.InfoContext(ctx, "unpaid orders cancelled", "orders", n, "actor", actor)
	}
	return verdicts, nil
}

// The outcomes that cancel_due.sql tells apart.
const (
	cancelled = "cancelled"
	terminal  = "terminal" // paid or cancelled before
	gone      = "gone"     // no such order
	notDue    = "not_due"
	locked    = "locked"
	blocked   = "blocked" // by who holds one of its products; of cancelFree
)

// verdict is what became of one order that was asked to time out.
type verdict struct {
	ID         uuid.UUID
	CustomerID uuid.UUID // nil for the id of no order
	Outcome    string
	Micros     int64 // how late it was cancelled, or what is left until its deadline
}

func (v verdict) duration() time.Duration { return time.Duration(v.Micros) * time.Microsecond }

func (v verdict) taskOutcome() delay.Outcome {
	switch v.Outcome {
	case notDue:
		return delay.RetryIn(max(v.duration(), 0))
	case locked:
		return delay.RetryIn(lockedRetry)
	case blocked:
		return delay.RetryIn(aSecond())
	default:
		return delay.Done()
	}
}

func count(verdicts []verdict, outcome string) int {
	n := 0
	for _, v := range verdicts {
		if v.Outcome == outcome {
			n++
		}
	}
	return n
}
