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
	verdicts, err := t.timeOut(ctx, ids, Worker, 0)
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
	verdicts, err := t.timeOut(ctx, ids, Reconciler, maxLockWait)
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
func (t *Table) timeOut(ctx context.Context, ids []string, actor Actor, lockWait time.Duration) ([]Verdict, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	verdicts, err := t.timeOutBatch(ctx, ids, actor, lockWait)
	if t.observe != nil {
		t.observe(ctx, verdicts, actor)
	}
	return verdicts, err
}

// timeOutBatch times out all rows with one statement, unless they must be split by the locks of their shared rows.
func (t *Table) timeOutBatch(ctx context.Context, ids []string, actor Actor, lockWait time.Duration) ([]Verdict, error) {
	if t.waits.splitting() {
		return t.timeOutSplit(ctx, ids, actor, lockWait)
	}
	verdicts, err := t.timeOutRows(ctx, ids, actor, lockWait)
	switch {
	case !postgres.LockTimedOut(err):
		return verdicts, err
	case t.splitRows == nil:
		return blocked(ids), nil
	}
	t.waits.startSplitting()
	return t.timeOutSplit(ctx, ids, actor, lockWait)
}

// timeOutSplit times out the rows whose shared rows are free with one statement, and the rows that need a locked shared
// row with one statement for each shared row.
func (t *Table) timeOutSplit(ctx context.Context, ids []string, actor Actor, lockWait time.Duration) ([]Verdict, error) {
	free, locked, err := t.splitRows(ctx, ids)
	if err != nil {
		return nil, err
	}
	var verdicts []Verdict
	if len(free) > 0 {
		verdicts, err = t.timeOutRows(ctx, free, actor, lockWait)
		if postgres.LockTimedOut(err) { // another session has locked a shared row after the split
			verdicts, err = blocked(free), nil
		}
	}
	for key, ids := range locked {
		if err != nil {
			return verdicts, err
		}
		var ofKey []Verdict
		ofKey, err = t.timeOutLocked(ctx, key, ids, actor)
		verdicts = append(verdicts, ofKey...)
	}
	return verdicts, err
}

// timeOutLocked times out the rows that need a shared row that another session has locked. The statement waits a little
// for the lock, because most sessions keep a lock for milliseconds.
func (t *Table) timeOutLocked(ctx context.Context, key string, ids []string, actor Actor) ([]Verdict, error) {
	wait, skipped := t.waits.limit(key, len(ids))
	if skipped {
		return blocked(ids), nil
	}
	verdicts, err := t.timeOutRows(ctx, ids, actor, wait)
	if postgres.LockTimedOut(err) {
		// The tasks come back one by one. A line for each would be thousands in a minute.
		t.log.WarnContext(ctx, "rows that may be due wait for a shared row that another session has locked",
			"shared_row", key, "postponed", t.waits.skip(key, len(ids)))
		return blocked(ids), nil
	}
	return verdicts, err
}

// blocked returns the verdict [Blocked] for each id.
func blocked(ids []string) []Verdict {
	verdicts := make([]Verdict, len(ids))
	for i, id := range ids {
		verdicts[i] = Verdict{ID: id, State: Blocked}
	}
	return verdicts
}
