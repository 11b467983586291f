package delay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"example.com/shop/internal/postgres"
)

// ErrUnavailable means that a table cannot be used now, for a reason outside its rows. A later call may succeed.
var ErrUnavailable = errors.New("the table is not available")

// RowState is the state of a row after a statement that times out rows.
type RowState string

// The states of rows.
const (
	TimedOut     RowState = "timed_out"     // the statement has timed the row out
	AlreadyEnded RowState = "already_ended" // the row ended before the statement
	Gone         RowState = "gone"          // there is no row with this id
	NotDue       RowState = "not_due"       // the deadline of the row is in the future
	Locked       RowState = "locked"        // another session holds a lock on the row
	Blocked      RowState = "blocked"       // another session holds a lock on a shared row that the statement changes
)

// Verdict is the result of a statement that times out rows, for one id.
type Verdict struct {
	ID    string
	State RowState
	Late  time.Duration // the time since the deadline, if the state is TimedOut
	Left  time.Duration // the time until the deadline, if the state is NotDue
	// Owner and Reason are for [TimeoutTable.Observe]: whom to notify, and why the row ended. This package does not read
	// them.
	Owner, Reason string
}

// Actor is the component that times out rows.
type Actor string

// The actors.
const (
	ByWorker     Actor = "worker"
	ByReconciler Actor = "reconciler"
)

// TimeoutTable holds the functions with which [Timeouts] times out the rows of a table. They return the errors of
// PostgreSQL, wrapped or not, because [Timeouts] sorts them by their codes.
//
// The timeout of a row may also change a shared row: a row of another table that several rows refer to, for instance a
// stock to which each of them returns its quantity. Sessions that hold the lock of a shared row delay the timeouts of
// all rows that need it.
type TimeoutTable struct {
	// TimeOut times out those of the rows that are due, in one transaction, and returns one verdict for each id. The
	// verdict is [Gone] for an id that cannot be the id of a row. A row whose lock another session holds is skipped, with
	// the verdict [Locked].
	//
	// TimeOut waits at most lockWait for the lock of a shared row; 0 means the lock_timeout of the session. If it does
	// not get the lock in this time, it returns the error lock_not_available (55P03).
	TimeOut func(ctx context.Context, ids []string, by Actor, lockWait time.Duration) ([]Verdict, error)

	// Split returns in free the ids of rows whose shared rows are not locked now. It returns in held the other ids, by
	// the key of a shared row that another session has locked. It waits for no lock. Split is nil if the timeouts
	// change no shared rows.
	Split func(ctx context.Context, ids []string) (free []string, held map[string][]string, err error)

	// Observe is called with the verdicts of each call of the worker or of the reconciler, to count and to log them and
	// to notify others. It may be nil.
	Observe func(ctx context.Context, verdicts []Verdict, by Actor)
}

// Timeouts times out the rows of a table when they are due, for a worker and for a reconciler. It handles errors in
// three ways:
//
//   - While the database is unavailable, tasks are postponed, and their attempts do not count as failed.
//   - After a statement did not get the lock of a shared row in time, the rows that need a locked shared row are timed
//     out separately for a while, so that the other rows do not wait for the lock.
//   - Any other error is returned, so that the worker or the reconciler searches for the row that causes it.
type Timeouts struct {
	table TimeoutTable
	log   *slog.Logger
	waits lockWaits
}

// NewTimeouts returns the timeouts of the tasks of a kind. The id of a task is the id of its row.
func NewTimeouts(kind string, table TimeoutTable, log *slog.Logger) *Timeouts {
	return &Timeouts{
		table: table, log: log.With("kind", kind),
		waits: lockWaits{skipUntil: make(map[string]time.Time)},
	}
}

// Handle is the [Handler] of the tasks. A task is done when its row has ended or does not exist. A task that came early
// is due again at its deadline.
func (t *Timeouts) Handle(ctx context.Context, tasks []Task) ([]Outcome, error) {
	ids := make([]string, len(tasks))
	for i, task := range tasks {
		ids[i] = task.ID
	}
	verdicts, err := t.timeOut(ctx, ids, ByWorker, 0)
	switch {
	case postgres.Unavailable(err):
		t.log.WarnContext(ctx, "the database cannot time out rows now; their tasks are postponed",
			"tasks", len(tasks), "error", err)
		return postponed(ctx, tasks), nil
	case err != nil:
		return nil, err
	}
	byID := make(map[string]Verdict, len(verdicts))
	for _, v := range verdicts {
		byID[v.ID] = v
	}
	outcomes := make([]Outcome, len(tasks))
	for i, id := range ids {
		v, found := byID[id]
		if !found {
			return nil, fmt.Errorf("internal inconsistency: expected a verdict on each task, found none on %.64q", id)
		}
		outcomes[i] = v.outcome()
	}
	t.logGone(ctx, verdicts)
	return outcomes, nil
}

// lockedRetry is the wait before the next attempt on a row that another session holds. It is short, because that
// session is probably ending the row.
const lockedRetry = 100 * time.Millisecond

func (v Verdict) outcome() Outcome {
	switch v.State {
	case NotDue:
		return RetryIn(max(v.Left, 0))
	case Locked:
		return RetryIn(lockedRetry)
	case Blocked:
		return RetryIn(jitter(time.Second))
	case TimedOut, AlreadyEnded, Gone:
		return Done()
	default:
		return Fail(fmt.Errorf("the statement returned the unknown state %q", v.State))
	}
}

// postponed returns outcomes with which all tasks are due again in about a second. If the worker stops, they are due at
// once, so that another worker can claim them.
func postponed(ctx context.Context, tasks []Task) []Outcome {
	if errors.Is(ctx.Err(), context.Canceled) {
		return all(tasks, RetryIn(0))
	}
	outcomes := make([]Outcome, len(tasks))
	for i := range outcomes {
		outcomes[i] = RetryIn(jitter(time.Second))
	}
	return outcomes
}

// logGone logs the tasks without a row: the first one with its id, and the number of the others.
func (t *Timeouts) logGone(ctx context.Context, verdicts []Verdict) {
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
// that it timed out, and in held the number of due rows that it left because other sessions hold their locks, or the
// lock of a shared row that they need. After an error some of the rows may have been timed out. The error wraps
// [ErrUnavailable] if its cause is outside the rows.
func (t *Timeouts) TimeOut(ctx context.Context, ids []string) (done, held int, err error) {
	verdicts, err := t.timeOut(ctx, ids, ByReconciler, maxLockWait)
	for _, v := range verdicts {
		switch v.State {
		case TimedOut:
			done++
		case Locked, Blocked:
			held++
		}
	}
	if postgres.Unavailable(err) && !postgres.TimedOut(err) { // a statement may exceed its time because of its rows
		err = fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return done, held, err
}

func (t *Timeouts) timeOut(ctx context.Context, ids []string, by Actor, lockWait time.Duration) ([]Verdict, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	verdicts, err := t.together(ctx, ids, by, lockWait)
	if t.table.Observe != nil {
		t.table.Observe(ctx, verdicts, by)
	}
	return verdicts, err
}

// together times out all rows with one statement, unless they must be split by the locks of their shared rows.
func (t *Timeouts) together(ctx context.Context, ids []string, by Actor, lockWait time.Duration) ([]Verdict, error) {
	if t.waits.splitting() {
		return t.apart(ctx, ids, by, lockWait)
	}
	verdicts, err := t.table.TimeOut(ctx, ids, by, lockWait)
	switch {
	case !postgres.LockTimedOut(err):
		return verdicts, err
	case t.table.Split == nil:
		return blocked(ids), nil
	}
	t.waits.startSplitting()
	return t.apart(ctx, ids, by, lockWait)
}

// apart times out the rows whose shared rows are free with one statement, and the rows that need a held shared row with
// one statement for each shared row.
func (t *Timeouts) apart(ctx context.Context, ids []string, by Actor, lockWait time.Duration) ([]Verdict, error) {
	free, held, err := t.table.Split(ctx, ids)
	if err != nil {
		return nil, err
	}
	var verdicts []Verdict
	if len(free) > 0 {
		verdicts, err = t.table.TimeOut(ctx, free, by, lockWait)
		if postgres.LockTimedOut(err) { // another session has locked a shared row after Split
			verdicts, err = blocked(free), nil
		}
	}
	for key, ids := range held {
		if err != nil {
			return verdicts, err
		}
		var some []Verdict
		some, err = t.heldRows(ctx, key, ids, by)
		verdicts = append(verdicts, some...)
	}
	return verdicts, err
}

// heldRows times out the rows that need a shared row that another session holds. The statement waits a little for the
// lock, because most sessions hold a lock for milliseconds.
func (t *Timeouts) heldRows(ctx context.Context, key string, ids []string, by Actor) ([]Verdict, error) {
	wait := t.waits.limit(key)
	if wait == 0 {
		return blocked(ids), nil
	}
	verdicts, err := t.table.TimeOut(ctx, ids, by, wait)
	if postgres.LockTimedOut(err) {
		t.waits.skip(key)
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

// lockWaits remembers the shared rows whose locks statements did not get in time.
type lockWaits struct {
	mu         sync.Mutex
	splitUntil time.Time            // until then rows are split by the locks of their shared rows before each statement
	skipUntil  map[string]time.Time // by the key of a shared row: until then no statement waits for its lock
}

const (
	// skipFor is the time for which statements do not wait for the lock of a shared row again.
	skipFor = 5 * time.Second
	// splitFor is the time for which rows are split by the locks of their shared rows before each statement. It is
	// long, because a statement on rows that were not split may wait as long as the lock_timeout of the session.
	splitFor = time.Minute
	// maxLockWait is longer than sessions usually hold the lock of a shared row, and short compared to a sweep. After
	// statements did not get the locks of manySkipped shared rows, they wait only minLockWait for each further one.
	maxLockWait = 500 * time.Millisecond
	minLockWait = 50 * time.Millisecond
	manySkipped = 3
)

// splitting reports whether rows must be split before each statement, because a statement did not get a lock in time.
func (w *lockWaits) splitting() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Now().Before(w.splitUntil)
}

// startSplitting notes that a statement did not get the lock of an unknown shared row in time.
func (w *lockWaits) startSplitting() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.splitUntil = time.Now().Add(splitFor)
}

// skip notes that a statement did not get the lock of the shared row with this key in time.
func (w *lockWaits) skip(key string) {
	w.startSplitting()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.skipUntil[key] = time.Now().Add(skipFor)
}

// limit returns how long a statement should wait for the lock of a shared row that another session holds; 0 means not
// at all.
func (w *lockWaits) limit(key string) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(w.skipUntil, func(_ string, until time.Time) bool { return now.After(until) })
	_, skipped := w.skipUntil[key]
	switch {
	case skipped:
		return 0
	case len(w.skipUntil) >= manySkipped:
		return minLockWait
	default:
		return maxLockWait
	}
}
