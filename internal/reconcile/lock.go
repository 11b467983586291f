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

// lockIdle is the longest time for which a sweep has its lock: the sweeps of all processes stop for that long if one
// hangs.
const lockIdle = 2 * time.Minute

// lockIdleAlone is lockIdle for a service without a queue, in which no worker times out rows while a sweep hangs.
const lockIdleAlone = 10 * time.Second

// lock takes the advisory lock of the sweeps. The lock belongs to a transaction of the returned connection, so
// PostgreSQL releases it if the process dies. It does not belong to the session, which a pooler may give to another
// client.
//
// The transaction is idle until the end of the sweep. It has no snapshot then, so it does not delay VACUUM. If the
// process hangs, idle_in_transaction_session_timeout ends the session.
func (r *Reconciler) lock(ctx context.Context) (*sql.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	conn, err := r.db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to the database for a sweep: %w", err)
	}
	_, err = conn.ExecContext(ctx, `BEGIN`) // a sql.Tx would end with ctx
	var locked bool
	if err == nil {
		err = conn.QueryRowContext(ctx, `
			SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0)) FROM set_config('idle_in_transaction_session_timeout', $2, true)`,
			"reconcile "+r.kind, strconv.FormatInt(r.lockIdle.Milliseconds(), 10)).Scan(&locked)
	}
	if err == nil && !locked {
		if _, err = conn.ExecContext(ctx, `ROLLBACK`); err == nil {
			conn.Close() // returns it to the pool
			return nil, ErrBusy
		}
	}
	if err != nil {
		discard(conn)
		return nil, fmt.Errorf("take the lock of the sweeps: %w", err)
	}
	return conn, nil
}

// discard closes a connection instead of returning it to the pool. So its transaction ends, and releases the lock,
// even if the sweep has failed.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	conn.Close()
}
