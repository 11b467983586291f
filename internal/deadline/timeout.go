package deadline

import (
	"context"
	"fmt"
	"time"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/reconcile"
)

// Handle is the [delay.Handler] of the tasks. A task is done when its row has ended or does not exist. A task that
// came early is due again at its deadline.
func (t *Table) Handle(ctx context.Context, tasks []delay.Task) ([]delay.Outcome, error) {
	ids := make([]string, len(tasks))
	for i, task := range tasks {
		ids[i] = task.ID
	}
	verdicts, err := t.timeOut(ctx, ids, Worker)
	switch {
	case postgres.Unavailable(err):
		t.log.WarnContext(ctx, "the database cannot time out rows now; their tasks are postponed",
			"tasks", len(tasks), "error", err)
		outcomes := make([]delay.Outcome, len(tasks))
		for i := range outcomes {
			outcomes[i] = delay.RetrySoon(ctx)
		}
		return outcomes, nil
	case err != nil:
		return nil, err
	}
	byID := make(map[string]Verdict, len(verdicts))
	for _, v := range verdicts {
		byID[v.ID] = v
	}
	outcomes := make([]delay.Outcome, len(tasks))
	for i, id := range ids {
		v, found := byID[id]
		if !found {
			return nil, fmt.Errorf("internal inconsistency: expected a verdict on each task, found none on %.64q", id)
		}
		outcomes[i] = v.outcome(ctx)
	}
	t.logGone(ctx, verdicts)
	return outcomes, nil
}

// lockedRetry is the time before the next attempt on a row that another session has locked. Most such sessions end the row
// within milliseconds. With a longer time, the other rows time out late. With a shorter one, rows that stay locked cost
// more attempts.
const lockedRetry = 100 * time.Millisecond

// outcome returns the outcome of the task of a row.
func (v Verdict) outcome(ctx context.Context) delay.Outcome {
	switch v.State {
	case NotDue:
		return delay.RetryIn(max(v.Left, 0))
	case Locked:
		return delay.RetryIn(lockedRetry)
	case Blocked:
		return delay.RetrySoon(ctx)
	case TimedOut, AlreadyEnded, Gone:
		return delay.Done()
	default:
		return delay.Fail(fmt.Errorf("the statement returned the unknown state %q", v.State))
	}
}

// logGone logs the tasks without a row: the first one with its id, and the number of the others.
func (t *Table) logGone(ctx context.Context, verdicts []Verdict) {
	gone := 0
	for _, v := range verdicts {
		if v.State != Gone {
			continue
		}
		if gone++; gone == 1 {
			t.log.WarnContext(ctx, "a task was dropped because its row does not exist",
				"task", fmt.Sprintf("%.64s", v.ID))
		}
	}
	if gone > 1 {
		t.log.WarnContext(ctx, "more tasks were dropped because their rows do not exist", "tasks", gone-1)
	}
}

// TimeOut times out those of the rows that are due, for a reconciler. It returns in done the number of rows
// that it timed out, and in locked the number of due rows that it left because other sessions have locked them, or a
// shared row that they need. After an error some of the rows may have been timed out. The error wraps
// [reconcile.ErrUnavailable] if its cause is outside the rows.
func (t *Table) TimeOut(ctx context.Context, ids []string) (done, locked int, err error) {
	verdicts, err := t.timeOut(ctx, ids, Reconciler)
	for _, v := range verdicts {
		switch v.State {
		case TimedOut:
			done++
		case Locked, Blocked:
			locked++
		}
	}
	if postgres.Unavailable(err) && !postgres.StatementTimedOut(err) { // a statement may exceed its time because of its rows
		err = fmt.Errorf("%w: %w", reconcile.ErrUnavailable, err)
	}
	return done, locked, err
}

// timeOut times out rows, and calls observe with the verdicts.
func (t *Table) timeOut(ctx context.Context, ids []string, actor Actor) ([]Verdict, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	verdicts, err := t.timeOutOrSplit(ctx, ids, actor)
	if t.observe != nil {
		t.observe(ctx, verdicts, actor)
	}
	return verdicts, err
}

// splitFor is the time for which no statement waits for the lock of a shared row after one has waited too long.
const splitFor = time.Second

// timeOutOrSplit times out all rows with one statement, or only those whose shared rows are free if the statement has
// waited too long for a lock, or if another one did lately.
func (t *Table) timeOutOrSplit(ctx context.Context, ids []string, actor Actor) ([]Verdict, error) {
	if waited := t.waited.Load(); waited == nil || time.Since(*waited) > splitFor {
		verdicts, err := t.timeOutRows(ctx, ids, actor)
		if !postgres.LockTimedOut(err) {
			return verdicts, err
		}
		now := time.Now()
		t.waited.Store(&now)
	}
	return t.timeOutFree(ctx, ids, actor)
}

// timeOutFree times out the rows whose shared rows are free. The other rows are blocked. So are all of them if the statement
// does not get a lock in time.
func (t *Table) timeOutFree(ctx context.Context, ids []string, actor Actor) (verdicts []Verdict, err error) {
	free, err := t.freeRows(ctx, ids)
	if err != nil {
		return nil, err
	}
	if len(free) > 0 {
		verdicts, err = t.timeOutRows(ctx, free, actor)
		if err != nil && !postgres.LockTimedOut(err) {
			return nil, err
		}
	}
	decided := make(map[string]bool, len(verdicts))
	for _, v := range verdicts {
		decided[v.ID] = true
	}
	for _, id := range ids {
		if !decided[id] {
			verdicts = append(verdicts, Verdict{ID: id, State: Blocked})
		}
	}
	return verdicts, nil
}
