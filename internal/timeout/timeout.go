// Package timeout times out the rows of a table that are pending at their deadlines.
//
// A domain describes its table as [Rows], with the statement that times out a batch. A [Table] runs this statement for
// two callers: the worker of package delay, when the tasks of the rows are due, and the reconciler of package
// reconcile, which finds the rows whose tasks were lost. Both may time out the same row, even at the same time, because
// the statement changes only rows that are pending and due.
package timeout

import (
	"cmp"
	"context"
	_ "embed"
	"strings"
	"time"

	"github.com/google/uuid"
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
	// each row that was timed out. [Rows.Statements] appends the query that returns the results. TimeOut skips a row
	// that another session has locked. If it changes shared rows, it first sets a short lock_timeout for itself:
	// set_config('lock_timeout', '500', true).
	//
	// Parameters: $1 ids (uuid[]) · $2 the [Caller] (text)
	//
	// Columns of ended: id · due_at, ended_at (timestamptz) · owner, reason (may be absent: see [Result])
	TimeOut string

	// Pending returns a page of the pending rows, with the parameters of pending.sql, which is used if Pending is "".
	// Only rows with Ask may need it, if other columns than status and Due say which of them are pending.
	Pending string

	// Free returns those ids of a batch whose shared rows no other session has locked. It waits for no lock. Free is
	// "" if timeouts change no shared rows.
	//
	// Parameter: $1 ids (uuid[]) · Column: id
	Free string

	// Ask times out rows instead of TimeOut, if another service must be asked about them. It returns one result for
	// each id.
	Ask func(ctx context.Context, ids []uuid.UUID, by Caller) ([]Result, error)

	// Observe is called with the results of each batch, to count and to log them and to notify others. It may be nil.
	Observe func(ctx context.Context, results []Result, by Caller)
}

// Caller is the component that times out rows.
type Caller string

// The callers.
const (
	ByWorker     Caller = "worker"
	ByReconciler Caller = "reconciler"
)

// Result says what a batch that times out rows did for one id.
type Result struct {
	ID    string
	State RowState
	Late  time.Duration // the time since the deadline, if the state is TimedOut
	Left  time.Duration // the time until the deadline, if the state is NotDue
	// Owner is whom to notify, and Reason is why the row ended. They are for [Rows.Observe]: this package does not
	// read them.
	Owner, Reason string
}

// RowState is the state of a row after a batch that times out rows.
type RowState string

// The states of rows.
const (
	TimedOut     RowState = "timed_out"     // the batch has timed the row out
	AlreadyEnded RowState = "already_ended" // the row ended before
	Gone         RowState = "gone"          // there is no row with this id: the task is dropped
	NotDue       RowState = "not_due"       // the deadline of the row is in the future
	Locked       RowState = "locked"        // another session has locked the row
	Blocked      RowState = "blocked"       // a shared row of the row is locked; only [Table] sets this state
)

// The statements that [Rows.Statements] completes with the names of a table.
var (
	//go:embed pending.sql
	pendingSQL string
	//go:embed results.sql
	resultsSQL string
)

// Statements returns the complete statements: the one that reads a page of the pending rows, and the one that times
// out a batch and returns a [Result] for each id. timeOut is "" for rows with Ask.
func (r Rows) Statements() (pending, timeOut string) {
	names := strings.NewReplacer("{table}", r.Table, "{due}", r.Due)
	if r.Ask == nil {
		timeOut = r.TimeOut + names.Replace(resultsSQL)
	}
	return cmp.Or(r.Pending, names.Replace(pendingSQL)), timeOut
}
