// Package deadline times out the rows of a table at their deadlines.
//
// A [Table] is made from the SQL statements of one domain. It serves the two callers that time out rows. The worker of
// package delay calls [Table.Handle] with the tasks that are due. The reconciler of package reconcile calls the other
// methods, to compare the table with the queue, and to time out the rows that the worker has left.
//
// Both callers run the same statement on a batch of rows. The statement decides by the database's clock which of them are
// due, because a task may come early, or more than once. It returns a [Verdict] on each row.
//
// [ReadBacklog] and [ReadLateness] read how many rows wait and how late they time out. [FindViolations] checks the
// invariants of a domain, and [CheckReady] its tables.
package deadline

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"gorm.io/gorm"
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
	Blocked      RowState = "blocked"       // another session has locked a shared row that the statement changes
)

// Verdict is the result of a statement that times out rows, for one id.
type Verdict struct {
	ID    string
	State RowState
	Late  time.Duration // the time since the deadline, if the state is TimedOut
	Left  time.Duration // the time until the deadline, if the state is NotDue
	// Owner is whom to notify, and Reason is why the row ended. They are for the function that observes verdicts: this
	// package does not read them.
	Owner, Reason string
}

// Actor is the component that times out rows.
type Actor string

// The actors.
const (
	Worker     Actor = "worker"
	Reconciler Actor = "reconciler"
)

// Statements are the SQL statements of a table. The id of a row is a UUID, and it is the id of the row's task. A
// statement gets only ids that are UUIDs: for other ids there is no row.
//
// The timeout of a row may also change a shared row: a row of another table that several rows refer to, for instance a
// stock to which each of them returns its quantity. Sessions that have locked a shared row delay the timeouts of all rows
// that need it.
type Statements struct {
	// TimeOut times out those rows of a batch that are due, and returns one row for each id. It skips a row that another
	// session has locked. If it changes shared rows, it sets a short lock_timeout for itself, as cancel_due.sql of package
	// order does.
	//
	// Parameters: $1 ids (uuid[]) · $2 the [Actor] (text)
	//
	// Columns: id · state (a [RowState]) · late_us, left_us (bigint: [Verdict.Late] and [Verdict.Left] in microseconds) ·
	// owner, reason (may be NULL or absent: see [Verdict])
	TimeOut string

	// Free returns those ids of a batch whose shared rows no other session has locked. It waits for no lock. Free is "" if
	// timeouts change no shared rows.
	//
	// Parameter: $1 ids (uuid[])
	//
	// Column: id
	Free string

	// Pending returns a page of the rows that are pending, sorted by their due times and then by their ids.
	//
	// Parameters: $1 due time and $2 id of the last row of the previous page (NULL and any id: the first page) · $3 the
	// largest number of microseconds from now to a due time, negative for overdue rows (NULL: no maximum) · $4 the
	// largest number of rows
	//
	// Columns: id · due_at · left_us (bigint: the microseconds from now to due_at)
	Pending string
}

// Table times out the rows of a table, for a worker and for a reconciler. It handles errors in three ways:
//
//   - While the database is unavailable, tasks are postponed, and their attempts do not count as failed.
//   - After a statement did not get a lock in time, the rows whose shared rows are free are timed out by a second statement.
//     The others are [Blocked]: they are tried again later, and their attempts do not count as failed either. For a second
//     no further statement waits: else thousands of rows that need the locked row would delay all others.
//   - Any other error is returned, so that the worker or the reconciler searches for the row that causes it.
//
// A Table is a [reconcile.Table].
type Table struct {
	*Rows
	statements Statements
	// observe is called with the verdicts of each call of the worker or of the reconciler. It may be nil.
	observe func(ctx context.Context, verdicts []Verdict, actor Actor)
	log     *slog.Logger

	waited atomic.Pointer[time.Time] // when a statement last waited too long for a lock; nil: never
}

// NewTable returns the table whose rows are timed out by the tasks of a kind.
//
// The function observe is called with the verdicts of each call of the worker or of the reconciler, to count and to log
// them and to notify others. It may be nil.
func NewTable(
	db *gorm.DB, kind string, s Statements, observe func(ctx context.Context, verdicts []Verdict, actor Actor),
	log *slog.Logger,
) *Table {
	return &Table{Rows: NewRows(db, s.Pending), statements: s, observe: observe, log: log.With("kind", kind)}
}
