package timeout

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/postgres"
)

// Table times out rows. Its statement decides by the database's clock which rows are due, because a task may come
// early, or more than once. Errors are handled in three ways:
//
//   - An error whose cause is probably outside the rows is a [delay.Outage]. Tasks are postponed, and their attempts do
//     not count as failed, unless the statement succeeds for others.
//   - If a statement did not get a lock in time, a second statement times out the rows whose shared rows are free. The
//     other rows are [Blocked]: they are tried again later, and their attempts do not count as failed either. For a
//     second, each further batch times out only its rows whose shared rows are free, because thousands of rows that
//     need the locked row would otherwise delay all others.
//   - Any other error is returned, so that the worker or the reconciler searches for the row that causes it.
type Table struct {
	db   *gorm.DB
	rows Rows
	log  *slog.Logger

	lastLockTimeout atomic.Pointer[time.Time] // when a statement last waited too long for a lock; nil: never
}

// NewTable returns the table of rows that are timed out by the tasks of a kind.
func NewTable(db *gorm.DB, kind string, rows Rows, log *slog.Logger) *Table {
	rows.Pending, rows.TimeOut = rows.Statements()
	return &Table{db: db, rows: rows, log: log.With("kind", kind)}
}

// Check has PostgreSQL parse the statements. An error says which of them does not fit the schema, because it or a name
// in [Rows] is wrong.
func (t *Table) Check(ctx context.Context) error {
	// A pooler could give each call outside a transaction another session.
	return t.db.WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		for _, statement := range []string{t.rows.Pending, t.rows.TimeOut, t.rows.Free} {
			if statement == "" {
				continue
			}
			prepared, err := tx.Statement.ConnPool.PrepareContext(ctx, statement)
			if err != nil {
				return fmt.Errorf("the statement that begins with %.70q does not fit the schema: %w", statement, err)
			}
			defer func() { _ = prepared.Close() }()
		}
		return nil
	})
}

// databaseTimeout is the longest time for a call of a reconciler, because a connection whose other end is gone would
// delay a sweep, and with it all later ones. The worker limits the time of its calls itself.
const databaseTimeout = 15 * time.Second

// Pending returns a page of at most limit pending rows, sorted by due time, with the time left to each due time by the
// database's clock.
//
// The argument within selects the rows: those whose due times are at most within from now. If within is negative,
// these are the rows that are overdue by at least that much.
//
// To read the first page, pass the zero cursor as after. To read a further page, pass the next that Pending returned
// with the page before. On the last page next is zero.
func (t *Table) Pending(
	ctx context.Context, after keyset.Cursor, within time.Duration, limit int,
) (page []delay.Message, next keyset.Cursor, err error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	var rows []struct {
		ID     uuid.UUID
		DueAt  time.Time
		LeftUs int64
	}
	_, err = postgres.Scan(ctx, t.db, &rows, t.rows.Pending, after.At, after.ID, within.Microseconds(), limit)
	if err != nil {
		return nil, next, fmt.Errorf("read pending rows: %w", err)
	}
	for _, row := range rows {
		page = append(page, delay.In(row.ID.String(), time.Duration(row.LeftUs)*time.Microsecond))
	}
	if len(rows) == limit {
		last := rows[limit-1]
		next = keyset.Cursor{At: last.DueAt, ID: last.ID}
	}
	return page, next, nil
}

// Handle is the [delay.Handler] of the tasks. A task is done when its row has ended or does not exist. A task that
// came early is due again at its deadline.
func (t *Table) Handle(ctx context.Context, tasks []delay.Task) ([]delay.Outcome, error) {
	ids := make([]string, len(tasks))
	for i, task := range tasks {
		ids[i] = task.ID
	}
	results, err := t.timeOut(ctx, ids, ByWorker)
	switch {
	case postgres.Unavailable(err):
		return nil, delay.Outage(err, postgres.Classify(err) == postgres.Postponed)
	case err != nil:
		return nil, err
	}
	byID := make(map[string]Result, len(results))
	for _, result := range results {
		byID[result.ID] = result
	}
	outcomes := make([]delay.Outcome, len(tasks))
	var gone []string
	for i, id := range ids {
		result, found := byID[id]
		if !found {
			return nil, fmt.Errorf("internal inconsistency: expected a result for each task, found none for %.64q", id)
		}
		if result.State == Gone {
			gone = append(gone, id)
		}
		outcomes[i] = result.outcome(ctx)
	}
	if len(gone) > 0 {
		t.log.WarnContext(ctx, "tasks were dropped because their rows do not exist",
			"tasks", len(gone), "first", fmt.Sprintf("%.64s", gone[0]))
	}
	return outcomes, nil
}

// lockedRetry is the time before the next attempt on a row that another session has locked. Most such sessions end
// the row within milliseconds.
const lockedRetry = 100 * time.Millisecond

// outcome returns the outcome of the task of a row.
func (r Result) outcome(ctx context.Context) delay.Outcome {
	switch r.State {
	case NotDue:
		return delay.RetryIn(max(r.Left, 0))
	case Locked:
		return delay.RetryIn(lockedRetry)
	case Blocked:
		return delay.RetrySoon(ctx)
	case TimedOut, AlreadyEnded, Gone:
		return delay.Done()
	default:
		return delay.Fail(fmt.Errorf("the statement returned the unknown state %q", r.State))
	}
}

// TimeOut times out those of the rows that are due, for a reconciler. It returns in done the number of rows that it
// timed out, and in locked the number of due rows that it left because other sessions have locked them, or a shared
// row that they need. After an error some of the rows may have been timed out. The error is a [delay.Outage] if its
// cause is probably outside the rows.
func (t *Table) TimeOut(ctx context.Context, ids []string) (done, locked int, err error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	results, err := t.timeOut(ctx, ids, ByReconciler)
	for _, result := range results {
		switch result.State {
		case TimedOut:
			done++
		case Locked, Blocked:
			locked++
		}
	}
	if postgres.Unavailable(err) && !postgres.StatementTimedOut(err) { // one of the rows may slow a statement down
		err = delay.Outage(err, postgres.Classify(err) == postgres.Postponed)
	}
	return done, locked, err
}

// timeOut times out rows, and passes the results to the observer.
func (t *Table) timeOut(ctx context.Context, ids []string, by Caller) (results []Result, err error) {
	rows, foreign := keyset.ParseIDs(ids)
	if len(rows) > 0 {
		if results, err = t.run(ctx, rows, by); err != nil {
			return nil, err
		}
	}
	for _, id := range foreign {
		results = append(results, Result{ID: id, State: Gone})
	}
	if t.rows.Observe != nil {
		t.rows.Observe(ctx, results, by)
	}
	return results, nil
}

// noWaitFor is the time after a lock timeout for which no statement waits for the lock of a shared row.
const noWaitFor = time.Second

// run times out all rows with one statement. If this statement waits too long for a lock, or if another statement did
// lately, run times out only the rows whose shared rows are free.
func (t *Table) run(ctx context.Context, ids []uuid.UUID, by Caller) ([]Result, error) {
	if t.rows.Ask != nil {
		return t.rows.Ask(ctx, ids, by)
	}
	if last := t.lastLockTimeout.Load(); last == nil || time.Since(*last) > noWaitFor {
		results, err := t.runStatement(ctx, ids, by)
		if !postgres.LockTimedOut(err) {
			return results, err
		}
		now := time.Now()
		t.lastLockTimeout.Store(&now)
	}
	return t.runFree(ctx, ids, by)
}

// runFree times out the rows whose shared rows are free. The other rows are [Blocked], and if the statement does not
// get a lock in time, all rows are [Blocked].
func (t *Table) runFree(ctx context.Context, ids []uuid.UUID, by Caller) (results []Result, err error) {
	var free []uuid.UUID
	if t.rows.Free != "" {
		if err := t.db.WithContext(ctx).Raw(t.rows.Free, ids).Scan(&free).Error; err != nil {
			return nil, fmt.Errorf("find the rows whose shared rows are free: %w", err)
		}
	}
	if len(free) > 0 {
		results, err = t.runStatement(ctx, free, by)
		if err != nil && !postgres.LockTimedOut(err) {
			return nil, err
		}
	}
	hasResult := make(map[string]bool, len(results))
	for _, result := range results {
		hasResult[result.ID] = true
	}
	for _, id := range ids {
		if !hasResult[id.String()] {
			results = append(results, Result{ID: id.String(), State: Blocked})
		}
	}
	return results, nil
}

// runStatement runs [Rows.TimeOut]. The error of PostgreSQL is wrapped, because its code decides what happens next.
func (t *Table) runStatement(ctx context.Context, ids []uuid.UUID, by Caller) ([]Result, error) {
	var rows []struct {
		Result         `gorm:"embedded"` // without Late and Left
		LateUs, LeftUs int64
	}
	if _, err := postgres.Scan(ctx, t.db, &rows, t.rows.TimeOut, ids, by); err != nil {
		return nil, fmt.Errorf("time out rows: %w", err)
	}
	results := make([]Result, len(rows))
	for i, row := range rows {
		results[i] = row.Result
		results[i].Late = time.Duration(row.LateUs) * time.Microsecond
		results[i].Left = time.Duration(row.LeftUs) * time.Microsecond
	}
	return results, nil
}
