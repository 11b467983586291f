package postgres

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"
)

// Tx is a transaction that locks and reads, decides in Go, and writes: see [Transact]. It is for one goroutine.
type Tx struct {
	session *session
	queued  *pgx.Batch
	failed  error // of the first round trip that failed: nothing is committed after it
}

// Queue adds a statement to those that the next round trip sends. The functions of the [pgx.QueuedQuery] are called
// during that round trip. In the last one, their errors come too late to stop the commit.
func (tx *Tx) Queue(statement string, args ...any) *pgx.QueuedQuery {
	return tx.queued.Queue(statement, args...)
}

// Send sends the queued statements in one round trip. Each has its own snapshot: a statement that follows the one that
// has waited for a lock sees what the owner of the lock has committed.
func (tx *Tx) Send(ctx context.Context) error {
	batch := tx.queued
	tx.queued = &pgx.Batch{}
	err := tx.session.outcome(tx.session.Conn.Conn().SendBatch(ctx, batch).Close())
	tx.failed = cmp.Or(tx.failed, err)
	return err
}

// Transact runs a transaction. BEGIN goes with the first round trip that do sends, and COMMIT with the statements that
// do leaves in the queue, so that a transaction which locks, decides and writes takes two round trips. It commits also
// if do has changed nothing, because the commit then waits for the synchronous standby to have what do has read.
//
// An error of do rolls the transaction back. What must be stored although it is a rejection is therefore a result of
// do, and no error. Transact runs do again after a deadlock, so do must have no effects outside the transaction. After
// any other error for which [Unavailable] reports true, the transaction may have been committed.
//
// Do must not wait for anything but the database: other sessions wait for the locks of the transaction, and
// idle_in_transaction_session_timeout ends a session that does.
func Transact(ctx context.Context, db *gorm.DB, do func(tx *Tx) error) error {
	pool, err := db.DB()
	if err != nil {
		return fmt.Errorf("database handle: %w", err)
	}
	return RetryDeadlock(func() error {
		conn, err := pool.Conn(ctx)
		if err != nil {
			return err
		}
		err = conn.Raw(func(driver any) error { return transact(ctx, driver.(*session), do) })
		if closed := conn.Close(); err == nil {
			err = closed
		}
		return err
	})
}

func transact(ctx context.Context, s *session, do func(tx *Tx) error) error {
	tx := &Tx{session: s, queued: &pgx.Batch{}}
	tx.Queue("BEGIN")
	err := do(tx)
	if err == nil {
		err = tx.failed
	}
	if err == nil {
		tx.Queue("COMMIT")
		err = tx.Send(ctx)
	}
	if err != nil {
		s.rollBack(ctx)
	}
	return err
}

// rollBack ends the session's transaction if it has one. If it cannot, it closes the connection, so that the server
// does.
func (s *session) rollBack(ctx context.Context) {
	const none = 'I' // see https://www.postgresql.org/docs/current/protocol-message-formats.html, ReadyForQuery
	conn := s.Conn.Conn()
	if conn.IsClosed() || conn.PgConn().TxStatus() == none {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if _, err := conn.Exec(ctx, "ROLLBACK"); err != nil {
		_ = conn.Close(ctx)
	}
}
