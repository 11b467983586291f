package order

import (
	"context"
	"errors"
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
	verdicts, err := s.timeOut(ctx, ids, Worker, s.store.cancelDue)
	if err != nil && Unavailable(err) {
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
	dropped := 0
	for i, task := range tasks {
		v, known := byID[task.ID]
		if !known { // not the id of any order
			v.Outcome = gone
			s.metrics.outcomes.WithLabelValues(gone).Inc()
		}
		if v.Outcome == gone {
			if dropped++; dropped == 1 {
				s.log.WarnContext(ctx, "task of no order dropped", "order_id", clip(task.ID, 64))
			}
		}
		outcomes[i] = v.taskOutcome()
	}
	if dropped > 1 {
		s.log.WarnContext(ctx, "more tasks of no order dropped", "tasks", dropped-1)
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
