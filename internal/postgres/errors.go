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

// Unavailable reports whether the cause of an error is probably the database or the network, and not the statement, so
// that the same statement may succeed later. The server cannot be reached, or is stopping, full, read-only or too slow,
// the role lacks a privilege, or the server ended the transaction to resolve a deadlock. The error of an ended context
// counts too.
//
// If the server has [Answered], the code alone does not prove that: a trigger can raise any code because of one row.
func Unavailable(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		has := func(prefix string) bool { return strings.HasPrefix(pg.Code, prefix) }
		return slices.ContainsFunc(noFaults, has) || !slices.ContainsFunc(faults, has)
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, errUnreplicated) || errors.Is(err, ErrBusy) ||
		pgconn.SafeToRetry(err)
}

// Answered reports whether PostgreSQL answered a statement with an error, and the session goes on. Then a statement on
// other rows may succeed, whatever the code of the error. A session with a read-only server does not go on: see [Open].
func Answered(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return false
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.SeverityUnlocalized != "FATAL" && pg.SeverityUnlocalized != "PANIC" && pg.Code != codeReadOnly
}

// Away reports whether the database is [Unavailable] and has not [Answered]: no statement can succeed now.
func Away(err error) bool { return Unavailable(err) && !Answered(err) }

// Rejected reports whether PostgreSQL answered that the statement, or one of its values, is wrong. The same statement
// would fail again.
func Rejected(err error) bool {
	_, ok := errors.AsType[*pgconn.PgError](err)
	return ok && !Unavailable(err)
}

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
