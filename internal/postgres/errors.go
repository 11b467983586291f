package postgres

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
)

// faults lists the classes (two characters) and codes of errors whose cause is the statement or a row: data that is out
// of range, a constraint, an exception of a trigger, a mistake in the statement. The cause of any other error is
// outside the statement, so that the same statement may succeed later. See
// https://www.postgresql.org/docs/current/errcodes-appendix.html.
var faults = []string{"22", "23", "42", "P0001"}

// noFaults lists the exceptions: a missing privilege, and a missing table or constraint, as while a backup is restored.
var noFaults = []string{"42501", "42P01", "42704"}

// codeReadOnly is the code of the error of a change on a standby, or on a server that was made read-only.
const codeReadOnly = "25006"

// outages lists the errors of a server that any other change would have, too, because the server is read-only, its disk
// is full, or its operating system fails.
var outages = []string{codeReadOnly, "53100", "58"}

// Cause is what an error is due to, as [Classify] finds out.
type Cause int

const (
	// Unknown is the cause of an error that is not one of the database, and of no error.
	Unknown Cause = iota
	// Rejected means that PostgreSQL answered that the statement, or one of its values, is wrong. It would fail again.
	Rejected
	// Postponed means that PostgreSQL answered, but could not execute the statement now, because of a lock or a
	// missing privilege, for instance. The session goes on, and a statement on other rows may succeed now. So the
	// rows may be the cause after all: a trigger can raise any code because of one row.
	Postponed
	// Outage means that no statement can succeed now, because the server cannot be reached, or is stopping, read-only or
	// too slow, its disk is full, or the context has ended. A session with a read-only server does not go on: see [Open].
	Outage
)

// Classify returns the cause of an error, which may be wrapped.
func Classify(err error) Cause {
	_, unreachable := errors.AsType[*pgconn.ConnectError](err)
	pg, answered := errors.AsType[*pgconn.PgError](err)
	switch {
	case unreachable:
		return Outage
	case answered:
		has := func(prefix string) bool { return strings.HasPrefix(pg.Code, prefix) }
		ended := pg.SeverityUnlocalized == "FATAL" || pg.SeverityUnlocalized == "PANIC"
		switch {
		case slices.ContainsFunc(faults, has) && !slices.ContainsFunc(noFaults, has):
			return Rejected
		case ended || slices.ContainsFunc(outages, has):
			return Outage
		}
		return Postponed
	}
	_, network := errors.AsType[net.Error](err)
	if network || pgconn.SafeToRetry(err) {
		return Outage
	}
	for _, outage := range []error{
		context.Canceled, context.DeadlineExceeded, io.EOF, io.ErrUnexpectedEOF, driver.ErrBadConn, errUnreplicated, ErrBusy,
	} {
		if errors.Is(err, outage) {
			return Outage
		}
	}
	return Unknown
}

// Unavailable reports whether the cause of an error is probably the database or the network, and not the statement, so
// that the same statement may succeed later.
func Unavailable(err error) bool { return Classify(err) >= Postponed }

// StatementTimedOut reports whether PostgreSQL ended a statement because it ran longer than statement_timeout.
// [Unavailable] reports true for such an error too, although the rows of the statement may be the cause.
func StatementTimedOut(err error) bool { return hasCode(err, "57014") }

// LockTimedOut reports whether a statement waited for a lock of another session for as long as lock_timeout.
func LockTimedOut(err error) bool { return hasCode(err, "55P03") }

// Duplicate reports whether a statement would have violated a unique constraint.
func Duplicate(err error) bool { return hasCode(err, "23505") }

// Deadlocked reports whether PostgreSQL rolled a transaction back to resolve a deadlock or a serialization failure.
func Deadlocked(err error) bool { return hasCode(err, "40001", "40P01") }

// RetryDeadlock runs a statement or a transaction, and repeats it up to twice if it is [Deadlocked]. The statements of
// the application do not deadlock each other, because they lock rows in one order. But a statement of an operator may
// deadlock with them.
func RetryDeadlock(run func() error) error {
	const attempts = 3
	var err error
	for range attempts {
		if err = run(); !Deadlocked(err) {
			return err
		}
	}
	return err
}

// hasCode reports whether an error is PostgreSQL's and has one of the codes.
func hasCode(err error, codes ...string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.Contains(codes, pg.Code)
}
