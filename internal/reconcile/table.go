package reconcile

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/postgres"
)

// The statements that [Rows.Statements] completes with the names of a table.
var (
	//go:embed pending.sql
	pendingSQL string
	//go:embed verdicts.sql
	verdictsSQL string
)

// RowState is the state of a row after a statement that times out rows.
type RowState string

// The states of rows.
const (
	TimedOut     RowState = "timed_out"     // the statement has timed the row out
	AlreadyEnded RowState = "already_ended" // the row ended before the statement
	Gone         RowState = "gone"          // there is no row with this id: the task is dropped
	NotDue       RowState = "not_due"       // the deadline of the row is in the future
	Locked       RowState = "locked"        // another session has locked the row
	Blocked      RowState = "blocked"       // a shared row of the row is locked; only [Table] sets this state
)

// Verdict is the result of a statement that times out rows, for one id.
type Verdict struct {
	ID    string
	State RowState
	Late  time.Duration // the time since the deadline, if the state is TimedOut
	Left  time.Duration // the time until the deadline, if the state is NotDue
	// Owner is whom to notify, and Reason is why the row ended. They are for [Rows.Observe]: this package does not
	// read them.
	Owner, Reason string
}

// Actor is the component that times out rows.
type Actor string

// The actors.
const (
	ByWorker     Actor = "worker"
	ByReconciler Actor = "reconciler"
)

// Rows describes a table of rows that time out. The id of a row is a UUID, and it is the id of the row's task. A
// statement gets only ids that are UUIDs: for other ids there is no row.
//
// The timeout of a row may also change a shared row: a row of another table that several rows refer to, for instance
// a stock to which each of them returns its quantity. Sessions that have locked a shared row delay the timeouts of
// all rows that need it.
type Rows struct {
	// Table is the name of the table. Its columns are id (uuid) and status (text): 'pending' until a row ends. Due is
	// the name of its column of due times (timestamptz). It needs an index (due time, id) WHERE status = 'pending'.
	Table, Due string

	// TimeOut times out those rows of a batch that are due. It is a WITH clause, whose part named ended has one row for
	// each row that was timed out. [Rows.Statements] appends the query that returns the verdicts. TimeOut skips a row
	// that another session has locked. If it changes shared rows, it first sets a short lock_timeout for itself:
	// set_config('lock_timeout', '500', true).
	//
	// Parameters: $1 ids (uuid[]) · $2 the [Actor] (text)
	//
	// Columns of ended: id · due_at, ended_at (timestamptz) · owner, reason (may be absent: see [Verdict])
	TimeOut string

	// Pending returns a page of the pending rows, with the parameters of pending.sql, which is used if Pending is "".
	// Only rows with Ask may need it, if other columns than status and Due say which of them are pending.
	Pending string

	// Free returns those ids of a batch whose shared rows no other session has locked. It waits for no lock. Free is
	// "" if timeouts change no shared rows.
	//
	// Parameter: $1 ids (uuid[]) · Column: id
	Free string

	// Ask times out rows instead of TimeOut, if another service must be asked about them. It returns one verdict for
	// each id.
	Ask func(ctx context.Context, ids []uuid.UUID, actor Actor) ([]Verdict, error)

	// Observe is called with the verdicts of each batch, to count and to log them and to notify others. It may be nil.
	Observe func(ctx context.Context, verdicts []Verdict, actor Actor)
}

// Table times out rows. It serves two callers: a worker calls [Table.Handle] with the tasks that are due, and a
// [Reconciler] calls the other methods, to compare the table with the queue, and to time out what the worker has left.
//
// Both run the same statement on a batch of rows. The statement decides by the database's clock which rows are due,
// because a task may come early, or more than once. Errors are handled in three ways:
//
//   - An error whose cause is probably outside the rows is a [delay.Outage]. Tasks are postponed, and their attempts do
//     not count as failed, unless the statement succeeds for others.
//   - If a statement did not get a lock in time, a second statement times out the rows whose shared rows are free. The
//     other rows are [Blocked]: they are tried again later, and their attempts do not count as failed either. For a
//     second, each further batch times out only its rows whose shared rows are free, because thousands of rows that
//     need the locked row would otherwise delay all others.
//   - Any other error is returned, so that the worker or the reconciler searches for the row that causes it.
type Table struct {
	db    *gorm.DB
	kind  string
	rows  Rows
	begin BeginSpan
	log   *slog.Logger

	lastLockTimeout atomic.Pointer[time.Time] // when a statement last waited too long for a lock; nil: never
}

// BeginSpan begins a span of the rows that a worker or a reconciler times out as a batch, and returns the function
// that ends it. The function gets the error of the batch, also if the batch caused a panic.
type BeginSpan func(ctx context.Context, kind string, ids []string) (span context.Context, end func(error))

// ErrPanicked ends a span whose function has not returned.
var ErrPanicked = errors.New("panicked")

// Statements returns the complete statements: the one that reads a page of the pending rows, and the one that times
// out a batch and returns a [Verdict] on each id. timeOut is "" for rows with Ask.
func (r Rows) Statements() (pending, timeOut string) {
	names := strings.NewReplacer("{table}", r.Table, "{due}", r.Due)
	if r.Ask == nil {
		timeOut = r.TimeOut + names.Replace(verdictsSQL)
	}
	return cmp.Or(r.Pending, names.Replace(pendingSQL)), timeOut
}

// NewTable returns the table of rows that are timed out by the tasks of a kind. begin may be nil.
func NewTable(db *gorm.DB, kind string, rows Rows, begin BeginSpan, log *slog.Logger) *Table {
	if begin == nil {
		begin = func(ctx context.Context, _ string, _ []string) (context.Context, func(error)) {
			return ctx, func(error) {}
		}
	}
	rows.Pending, rows.TimeOut = rows.Statements()
	return &Table{db: db, kind: kind, rows: rows, begin: begin, log: log.With("kind", kind)}
}

// Check has PostgreSQL parse the statements. An error says which of them does not fit the schema, because it or a name
// in [Rows] is wrong.
func (t *Table) Check(ctx context.Context) error {
	pool, err := t.db.DB()
	if err != nil {
		return err
	}
	tx, err := pool.BeginTx(ctx, nil) // a pooler could give each call outside a transaction another session
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	for _, statement := range []string{t.rows.Pending, t.rows.TimeOut, t.rows.Free} {
		if statement == "" {
			continue
		}
		prepared, err := tx.PrepareContext(ctx, statement)
		if err != nil {
			return fmt.Errorf("the statement that begins with %.70q does not fit the schema: %w", statement, err)
		}
		defer func() { _ = prepared.Close() }()
	}
	return nil
}

// Handle is the [delay.Handler] of the tasks. A task is done when its row has ended or does not exist. A task that
// came early is due again at its deadline.
func (t *Table) Handle(ctx context.Context, tasks []delay.Task) ([]delay.Outcome, error) {
	ids := make([]string, len(tasks))
	for i, task := range tasks {
		ids[i] = task.ID
	}
	outcomes := make([]delay.Outcome, len(tasks))
	verdicts, err := t.timeOut(ctx, ids, ByWorker)
	switch {
	case postgres.Unavailable(err):
		return nil, delay.Outage(err, postgres.Answered(err))
	case err != nil:
		return nil, err
	}
	byID := make(map[string]Verdict, len(verdicts))
	for _, v := range verdicts {
		byID[v.ID] = v
	}
	var gone []string
	for i, id := range ids {
		v, found := byID[id]
		if !found {
			return nil, fmt.Errorf("internal inconsistency: expected a verdict on each task, found none on %.64q", id)
		}
		if v.State == Gone {
			gone = append(gone, id)
		}
		outcomes[i] = v.outcome(ctx)
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

// TimeOut times out those of the rows that are due, for a reconciler. It returns in done the number of rows that it
// timed out, and in locked the number of due rows that it left because other sessions have locked them, or a shared
// row that they need. After an error some of the rows may have been timed out. The error is a [delay.Outage] if its
// cause is probably outside the rows.
func (t *Table) TimeOut(ctx context.Context, ids []string) (done, locked int, err error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	verdicts, err := t.timeOut(ctx, ids, ByReconciler)
	for _, v := range verdicts {
		switch v.State {
		case TimedOut:
			done++
		case Locked, Blocked:
			locked++
		}
	}
	if postgres.Unavailable(err) && !postgres.StatementTimedOut(err) { // one of the rows may slow a statement down
		err = delay.Outage(err, postgres.Answered(err))
	}
	return done, locked, err
}

// timeOut times out rows in a span, and passes the verdicts to the observer.
func (t *Table) timeOut(ctx context.Context, ids []string, actor Actor) (verdicts []Verdict, err error) {
	ctx, end := t.begin(ctx, t.kind, ids)
	err = ErrPanicked // each return replaces it
	defer func() { end(err) }()
	rows, foreign := keyset.ParseIDs(ids)
	if len(rows) > 0 {
		if verdicts, err = t.decide(ctx, rows, actor); err != nil {
			return nil, err
		}
	}
	for _, id := range foreign {
		verdicts = append(verdicts, Verdict{ID: id, State: Gone})
	}
	if t.rows.Observe != nil {
		t.rows.Observe(ctx, verdicts, actor)
	}
	return verdicts, nil
}

// noWaitFor is the time after a lock timeout for which no statement waits for the lock of a shared row.
const noWaitFor = time.Second

// decide times out all rows with one statement. If this statement waits too long for a lock, or if another statement
// did lately, decide times out only the rows whose shared rows are free.
func (t *Table) decide(ctx context.Context, ids []uuid.UUID, actor Actor) ([]Verdict, error) {
	if t.rows.Ask != nil {
		return t.rows.Ask(ctx, ids, actor)
	}
	if last := t.lastLockTimeout.Load(); last == nil || time.Since(*last) > noWaitFor {
		verdicts, err := t.runTimeOut(ctx, ids, actor)
		if !postgres.LockTimedOut(err) {
			return verdicts, err
		}
		now := time.Now()
		t.lastLockTimeout.Store(&now)
	}
	return t.decideFree(ctx, ids, actor)
}

// decideFree times out the rows whose shared rows are free. The other rows are [Blocked], and if the statement does
// not get a lock in time, all rows are [Blocked].
func (t *Table) decideFree(ctx context.Context, ids []uuid.UUID, actor Actor) (verdicts []Verdict, err error) {
	var free []uuid.UUID
	if t.rows.Free != "" {
		if err := t.db.WithContext(ctx).Raw(t.rows.Free, ids).Scan(&free).Error; err != nil {
			return nil, fmt.Errorf("find the rows whose shared rows are free: %w", err)
		}
	}
	if len(free) > 0 {
		verdicts, err = t.runTimeOut(ctx, free, actor)
		if err != nil && !postgres.LockTimedOut(err) {
			return nil, err
		}
	}
	decided := make(map[string]bool, len(verdicts))
	for _, v := range verdicts {
		decided[v.ID] = true
	}
	for _, id := range ids {
		if !decided[id.String()] {
			verdicts = append(verdicts, Verdict{ID: id.String(), State: Blocked})
		}
	}
	return verdicts, nil
}

// runTimeOut runs [Rows.TimeOut]. The error of PostgreSQL is wrapped, because its code decides what happens next.
func (t *Table) runTimeOut(ctx context.Context, ids []uuid.UUID, actor Actor) ([]Verdict, error) {
	var rows []struct {
		Verdict        `gorm:"embedded"` // without Late and Left
		LateUs, LeftUs int64
	}
	if _, err := postgres.Scan(ctx, t.db, &rows, t.rows.TimeOut, ids, actor); err != nil {
		return nil, fmt.Errorf("time out rows: %w", err)
	}
	verdicts := make([]Verdict, len(rows))
	for i, row := range rows {
		verdicts[i] = row.Verdict
		verdicts[i].Late = time.Duration(row.LateUs) * time.Microsecond
		verdicts[i].Left = time.Duration(row.LeftUs) * time.Microsecond
	}
	return verdicts, nil
}
