package postgres

import (
	"context"
	"database/sql/driver"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
)

// errUnreplicated means that a transaction is committed, but that PostgreSQL stopped waiting for its synchronous
// standby, because an operator cancelled the statement. PostgreSQL reports a success with a warning. If the standby
// is promoted, the transaction may be lost.
var errUnreplicated = errors.New(
	"the wait for the synchronous standby was cancelled: the commit may be lost in a failover")

// unreplicatedKey is in the custom data of a session whose commit did not wait for the standby.
const unreplicatedKey = "unreplicated"

// pingTimeout is the longest time for a ping, which usually takes a millisecond.
const pingTimeout = time.Second

// session is a connection of a pool. It returns [errUnreplicated] for a statement or a commit whose wait for the
// standby was cancelled. Statements that [database/sql.DB.PrepareContext] returns are not covered.
type session struct {
	*stdlib.Conn
	connector *connector
}

// Close makes the connector forget the session, and closes the connection.
func (s *session) Close() error {
	s.connector.sessions.Delete(s)
	return s.Conn.Close()
}

// IsValid reports whether the pool may keep the session after a statement.
func (s *session) IsValid() bool {
	conn := s.Conn.Conn().PgConn()
	return !conn.IsClosed() && checkWritable(conn) == nil && conn.CustomData()[unreplicatedKey] == nil
}

// ResetSession is called before the pool uses the session again. Then pgx pings a session that was idle for more than
// a second, because a firewall may have dropped the connection silently, or the server may hang. A ping without a
// limit would take all the time of the request. If the ping fails, or finds a server that accepts no changes, the
// other idle sessions are closed without a ping, because each could take as long.
func (s *session) ResetSession(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	err := s.Conn.ResetSession(limited)
	if err == nil && !s.IsValid() {
		err = driver.ErrBadConn
	}
	if err != nil && ctx.Err() == nil {
		s.connector.closeIdle()
	}
	return err
}

func (s *session) ExecContext(ctx context.Context, statement string, args []driver.NamedValue) (driver.Result, error) {
	result, err := s.Conn.ExecContext(ctx, statement, args)
	return result, s.outcome(err)
}

func (s *session) QueryContext(ctx context.Context, statement string, args []driver.NamedValue) (driver.Rows, error) {
	found, err := s.Conn.QueryContext(ctx, statement, args)
	if err != nil {
		return nil, err
	}
	return &rows{found.(*stdlib.Rows), s}, nil
}

func (s *session) BeginTx(ctx context.Context, o driver.TxOptions) (driver.Tx, error) {
	begun, err := s.Conn.BeginTx(ctx, o)
	return &tx{begun, s}, err
}

// outcome returns err, the error of a call of pgx, or [errUnreplicated] if the call did not wait for the standby.
func (s *session) outcome(err error) error {
	if err == nil && s.Conn.Conn().PgConn().CustomData()[unreplicatedKey] != nil {
		return errUnreplicated
	}
	return err
}

// rows are the rows of a statement. PostgreSQL commits the statement after the last one. [database/sql.Rows.Err]
// returns the error of Close too.
type rows struct {
	*stdlib.Rows
	session *session
}

func (r *rows) Close() error { return r.session.outcome(r.Rows.Close()) }

type tx struct {
	driver.Tx
	session *session
}

func (t *tx) Commit() error { return t.session.outcome(t.Tx.Commit()) }
