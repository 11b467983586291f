package reconcile

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// ErrBusy means that another process or goroutine is sweeping.
var ErrBusy = errors.New("another sweep is under way")

// lockIdle is the longest time for which a sweep has its lock. With a longer time a process that hangs would stop the sweeps
// of the others for longer. With a shorter one a sweep that compares millions of rows would lose its lock, so that another
// process would repeat its work at the same time.
const lockIdle = 2 * time.Minute

// lock takes the advisory lock of the sweeps. The lock belongs to the session of the returned connection, so PostgreSQL
// releases it if the process dies. The session is idle until the end of the sweep. If the process hangs,
// idle_session_timeout ends the session.
func (r *Reconciler) lock(ctx context.Context) (*sql.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	conn, err := r.db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to the database for a sweep: %w", err)
	}
	var locked bool
	err = conn.QueryRowContext(ctx, `
		SELECT pg_try_advisory_lock(hashtextextended($1, 0)) FROM set_config('idle_session_timeout', $2, false)`,
		r.lockName(), strconv.FormatInt(r.lockIdle.Milliseconds(), 10)).Scan(&locked)
	if err == nil && locked {
		return conn, nil
	}
	discard(conn) // the session has a changed setting, and after an error it may even have the lock
	if err != nil {
		return nil, fmt.Errorf("take the lock of the sweeps: %w", err)
	}
	return nil, ErrBusy
}

// unlock releases the lock and closes the connection. Without the statement, PostgreSQL would release the lock a little
// later.
func (r *Reconciler) unlock(ctx context.Context, conn *sql.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	// After an error the end of the session releases the lock.
	_, _ = conn.ExecContext(ctx, `SELECT pg_advisory_unlock(hashtextextended($1, 0))`, r.lockName())
	discard(conn)
}

// lockName returns the name that the advisory lock is a hash of.
func (r *Reconciler) lockName() string { return "reconcile " + r.queue.Kind() }

// discard closes a connection, and with it the session, instead of returning it to the pool.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	conn.Close()
}
