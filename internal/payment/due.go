package payment

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order"
	"example.com/shop/internal/postgres"
)

// Table is a table of rows that must be checked at the provider, as package reconcile sees it. A row is overdue when its
// check is. To time out a row means to check it.
type Table struct {
	pending, table, column string
	service                *Service
	check                  func(ctx context.Context, ids []uuid.UUID, by delay.Actor) (ended int, err error)
}

// Attempts returns the table of [SettleKind]. Its ids are those of orders.
func (s *Service) Attempts() *Table {
	return &Table{pendingSQL, "payment_attempts", "order_id", s, s.settle}
}

// Refunds returns the table of [RefundKind].
func (s *Service) Refunds() *Table {
	return &Table{refundPendingSQL, "refunds", "id", s, s.sendRefunds}
}

// Pending returns a page of the rows that must be checked, sorted by the time of the check. See reconcile.Table.
func (t *Table) Pending(
	ctx context.Context, after string, within time.Duration, limit int,
) (page []delay.Message, next string, err error) {
	return order.PendingPage(ctx, t.service.store.db, t.pending, after, within, limit)
}

// Unknown returns those of the ids for which there is no row.
func (t *Table) Unknown(ctx context.Context, ids []string) ([]string, error) {
	return t.service.store.unknown(ctx, t.table, t.column, ids)
}

// checkTime is the time that TimeOut spends on calls to the provider. The next sweep goes on with the other rows.
const checkTime = 5 * time.Second

// TimeOut checks those of the rows whose checks are overdue, and returns the number of those that ended. A row that the
// provider cannot decide now is no failure: its next check is later.
func (t *Table) TimeOut(ctx context.Context, ids []string) (done, held int, err error) {
	rows, _ := keyset.ParseIDs(ids)
	began := time.Now()
	for batch := range slices.Chunk(rows, BatchSize) {
		ended, err := t.check(ctx, batch, delay.ByReconciler)
		done += ended
		if postgres.Unavailable(err) {
			return done, 0, fmt.Errorf("%w: %w", delay.ErrUnavailable, err)
		}
		if err != nil || time.Since(began) > checkTime {
			return done, 0, err
		}
	}
	return done, 0, nil
}
