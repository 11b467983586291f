package postgres

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/jackc/pgx/v5/stdlib"
)

// errUnreplicated means that a transaction is committed, but that PostgreSQL stopped waiting for its synchronous standby,
// because an operator cancelled the statement. PostgreSQL reports a success with a warning. If the standby is promoted, the
// transaction may be lost.
var errUnreplicated = errors.New("the wait for the synchronous standby was cancelled: the commit may be lost in a failover")

// session is a connection of a pool. It returns [errUnreplicated] for a statement or a commit whose wait for the standby was
// cancelled. If the server ends the connection, a new generation of sessions begins, because a server that stops ends all of
// them. Statements that [database/sql.DB.PrepareContext] returns are not covered.
type session struct {
	*stdlib.Conn
	hosts *connector
}

// Close makes the connector forget the session, and closes the connection.
func (s *session) Close() error {
	s.hosts.sessions.Delete(s)
	return s.Conn.Close()
}

func (s *session) ExecContext(ctx context.Context, statement string, args []driver.NamedValue) (driver.Result, error) {
	result, err := s.Conn.ExecContext(ctx, statement, args)
	return result, s.outcome(err)
}

func (s *session) QueryContext(ctx context.Context, statement string, args []driver.NamedValue) (driver.Rows, error) {
	found, err := s.Conn.QueryContext(ctx, statement, args)
	if err != nil {
		return nil, s.outcome(err)
	}
	return &rows{found.(*stdlib.Rows), s}, nil
}

func (s *session) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	begun, err := s.Conn.BeginTx(ctx, o)
	return &tx{begun, s}, s.outcome(err)
}

// outcome returns the error of a call for which pgx has returned err. If the connection is closed now, the server has ended it,
// unless it was closed before the call, which [driver.ErrBadConn] tells, or because a context has ended.
func (s *session) outcome(err error) error {
	conn := s.Conn.Conn().PgConn()
	switch {
	case err == nil:
		if conn.CustomData()[unreplicatedKey] != nil {
			return errUnreplicated
		}
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
	case conn.IsClosed():
		s.hosts.endGeneration(conn)
	}
	return err
}

// rows are the rows of a statement. PostgreSQL commits the statement after the last one. [database/sql.Rows.Err] returns the
// error of Close too.
type rows struct {
	*stdlib.Rows
	session *session
}

func (r *rows) Close() error { return r.session.outcome(r.Rows.Close()) }

// tx is a transaction.
type tx struct {
	driver.Tx
	session *session
}

func (t *tx) Commit() error { return t.session.outcome(t.Tx.Commit()) }
