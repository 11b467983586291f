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
	// session has locked.
	//
	// Parameters: $1 ids (uuid[]) · $2 the [Actor] (text)
	//
	// Columns: id · state (a [RowState]) · late_us, left_us (bigint: [Verdict.Late] and [Verdict.Left] in microseconds) ·
	// owner, reason (may be NULL or absent: see [Verdict])
	TimeOut string

	// Split returns each id of a batch with the key of a shared row that the row needs and that another session has
	// locked. It waits for no lock. Split is "" if timeouts change no shared rows.
	//
	// Choose keys that many rows have in common: the rows of each key are timed out by a statement of their own.
	//
	// Parameter: $1 ids (uuid[])
	//
	// Columns: id · locked (the key; NULL if no shared row of the row is locked)
	Split string

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
//   - After a statement did not get the lock of a shared row in time, the rows that need a locked shared row are timed
//     out separately for a while, so that the other rows do not wait for the lock.
//   - Any other error is returned, so that the worker or the reconciler searches for the row that causes it.
//
// A Table is a [reconcile.Table].
type Table struct {
	*Rows
	// timeOutRows returns one verdict for each id. It waits at most lockWait for the lock of a shared row; 0 means the
	// lock_timeout of the session. If it does not get the lock in this time, it returns PostgreSQL's error
	// lock_not_available (55P03).
	timeOutRows func(ctx context.Context, ids []string, actor Actor, lockWait time.Duration) ([]Verdict, error)
	// splitRows returns in free the ids of rows whose shared rows are not locked now. It returns in locked the other ids,
	// by the key of a shared row that another session has locked. It is nil if timeouts change no shared rows.
	splitRows func(ctx context.Context, ids []string) (free []string, locked map[string][]string, err error)
	// observe is called with the verdicts of each call of the worker or of the reconciler. It may be nil.
	observe func(ctx context.Context, verdicts []Verdict, actor Actor)
	log     *slog.Logger
	waits   lockWaits
}

// NewTable returns the table whose rows are timed out by the tasks of a kind.
//
// The function observe is called with the verdicts of each call of the worker or of the reconciler, to count and to log
// them and to notify others. It may be nil.
func NewTable(
	db *gorm.DB, kind string, s Statements, observe func(ctx context.Context, verdicts []Verdict, actor Actor),
	log *slog.Logger,
) *Table {
	run := runner{Rows: NewRows(db, s.Pending), statements: s}
	t := &Table{Rows: run.Rows, timeOutRows: run.timeOut, observe: observe, log: log.With("kind", kind)}
	if s.Split != "" {
		t.splitRows = run.split
	}
	return t
}
