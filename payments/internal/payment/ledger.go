package payment

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/google/uuid"
)

var (
	//go:embed ledger_lock.sql
	ledgerLockSQL string
	//go:embed ledger_count.sql
	ledgerCountSQL string
)

const (
	// keepLedger is the time for which a payment of a removed order is kept after its end, and after the last movement of its money.
	// Card networks take a dispute for up to 540 days after a payment, and decide it within months. After a shorter time, the
	// money of a dispute would match nothing. With a longer one, the tables would be larger.
	keepLedger = 2 * 365 * 24 * time.Hour
	// rereadLedger is how far back the books may be read again once a payment was deleted: a deleted payment would count as unclaimed.
	// The day between the two is for the provider's clock.
	rereadLedger = keepLedger - 24*time.Hour
	// maxDeletedPayments is the largest number of payments that one transaction locks. A report waits for it.
	maxDeletedPayments = 500
)

// deleteOldPayments deletes old payments of removed orders, and logs how many, or why it does not.
func (s *Service) deleteOldPayments(ctx context.Context) {
	deleted, err := s.store.deleteOldPayments(ctx, maxDeletedPayments)
	if deleted > 0 {
		s.log.InfoContext(ctx, "payments of removed orders were deleted", "payments", deleted)
	}
	if err != nil && ctx.Err() == nil {
		s.log.WarnContext(ctx, "old payments of removed orders are not deleted; it is tried again in an hour", "error", err)
	}
}

// ledgerRow is a payment of a removed order.
type ledgerRow struct {
	EndedAt time.Time
	ID      uuid.UUID
}

// deleteOldPayments deletes the payments of removed orders whose money is not expected to move any more, with their refunds and
// movements, and returns their number. It reads at most limit payments in a transaction.
func (s *Store) deleteOldPayments(ctx context.Context, limit int) (deleted int64, err error) {
	var rows []ledgerRow
	for after := (ledgerRow{}); ; after = rows[limit-1] {
		var n int64
		if rows, n, err = s.deleteNextPayments(ctx, after, limit); err != nil {
			return deleted, fmt.Errorf("delete old payments: %w", err)
		}
		if deleted += n; len(rows) < limit {
			return deleted, nil
		}
	}
}

// deleteNextPayments reads the next payments after one, deletes those that can be deleted, and returns what it read and how many
// it deleted.
func (s *Store) deleteNextPayments(ctx context.Context, after ledgerRow, limit int) (read []ledgerRow, deleted int64, err error) {
	err = s.booked(ctx, func(tx *Store, report int64, position time.Time) error {
		if err := tx.rows(ctx, &read, ledgerLockSQL, keepLedger.Microseconds(), after.EndedAt, after.ID, limit); err != nil {
			return err
		}
		ids, counted := make([]uuid.UUID, 0, len(read)), []uuid.UUID{}
		for _, row := range read {
			ids = append(ids, row.ID)
		}
		// An event about a refund changes the refund without the lock of its payment.
		if err := tx.booksExec(ctx, `SELECT FROM refunds WHERE attempt_id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE`, ids); err != nil {
			return err
		}
		if err := tx.rows(ctx, &counted, ledgerCountSQL, ids, keepLedger.Microseconds(), position, report); err != nil {
			return err
		}
		for _, statement := range []string{
			`DELETE FROM provider_movements WHERE attempt_id = ANY ($1::uuid[])`,
			`DELETE FROM refunds WHERE attempt_id = ANY ($1::uuid[])`,
			`DELETE FROM payment_attempts WHERE id = ANY ($1::uuid[])`,
		} {
			if err := tx.booksExec(ctx, statement, counted); err != nil {
				return err
			}
		}
		deleted = int64(len(counted))
		return nil
	})
	return read, deleted, err
}

// hasDeleted reports whether a payment was ever deleted.
func (s *Store) hasDeleted(ctx context.Context) (deleted bool, err error) {
	var row struct{ Payments int64 }
	deleted, err = s.row(ctx, &row, `SELECT payments FROM deleted_payments LIMIT 1`)
	if err != nil {
		return false, fmt.Errorf("look for deleted payments: %w", err)
	}
	return deleted, nil
}
