package reconcile

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// ErrSweeping means that another process or goroutine is sweeping.
var ErrSweeping = errors.New("another sweep is under way")

// lockIdle is the longest time for which a sweep has its lock, because a sweep that hangs stops the sweeps of all
// processes for that long.
const lockIdle = 2 * time.Minute

// lock begins a transaction that has the advisory lock of the sweeps. PostgreSQL releases the lock when the transaction
// ends, also because the process has died. The lock belongs to the transaction and not to the session, because a pooler
// may give the session to another client.
//
// The transaction is idle until the end of the sweep. It has no snapshot then, so it does not delay VACUUM. If the
// process hangs, idle_in_transaction_session_timeout ends the session.
func (r *Reconciler) lock(ctx context.Context) (*sql.Tx, error) {
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("connect to the database for a sweep: %w", err)
	}
	var locked bool
	err = tx.QueryRowContext(ctx, `
		SELECT pg_try_advisory_xact_lock(hashtextextended($1, 0))
		FROM set_config('idle_in_transaction_session_timeout', $2, true)`,
		"reconcile "+r.kind, strconv.FormatInt(r.lockIdle.Milliseconds(), 10)).Scan(&locked)
	switch {
	case err != nil:
		err = fmt.Errorf("take the lock of the sweeps: %w", err)
	case !locked:
		err = ErrSweeping
	default:
		return tx, nil
	}
	_ = tx.Rollback() // if it fails, the pool closes the connection
	return nil, err
}
