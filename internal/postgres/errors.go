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

// transient lists the classes (two characters) and codes of errors whose cause is outside the statement, so that the
// same statement may succeed later: connection, transaction rollback, resources, operator intervention, system; lock
// not available; transaction idle for too long; read-only after a failover; missing schema, table or constraint, as
// while a backup is restored. See https://www.postgresql.org/docs/current/errcodes-appendix.html.
var transient = []string{"08", "40", "53", "57", "58", "55P03", "25P03", codeReadOnly, "3F000", "42P01", "42704"}

// codeReadOnly is the code of the error of a change on a standby, or on a server that was made read-only.
const codeReadOnly = "25006"

// Unavailable reports whether the cause of an error is the database or the network, and not the statement, so that
// the same statement may succeed later. The server cannot be reached, or is stopping, full, read-only or too slow, or
// it ended the transaction to resolve a deadlock. The error of an ended context counts too.
func Unavailable(err error) bool {
	if _, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return true
	}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return slices.ContainsFunc(transient, func(code string) bool { return strings.HasPrefix(pg.Code, code) })
	}
	if _, ok := errors.AsType[net.Error](err); ok {
		return true
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, driver.ErrBadConn) || errors.Is(err, errUnreplicated) || errors.Is(err, ErrBusy) ||
		pgconn.SafeToRetry(err)
}

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

// Away is [Unavailable], but it reports false if the wait for a lock or the statement took too long, or if a [KeyGate]
// was full, because then the rows of the statement may be the cause.
func Away(err error) bool {
	return Unavailable(err) && !LockTimedOut(err) && !StatementTimedOut(err) && !errors.Is(err, ErrBusy)
}

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
