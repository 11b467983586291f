package payment

import (
	"context"
	_ "embed"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/deadline"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/reconcile"
)

// The statements for the reconciler.
var (
	//go:embed pending.sql
	pendingSQL string
	//go:embed refund_pending.sql
	refundPendingSQL string
)

// Table is a table of rows that must be checked at the provider. It implements [reconcile.Table]: the due time of a row
// is the time of its next check, and to time out a row means to check it.
type Table struct {
	*deadline.Rows
	check func(ctx context.Context, ids []uuid.UUID, actor deadline.Actor) (ended int, err error)
}

// Attempts returns the table of [SettleKind]. Its ids are those of orders.
func (s *Service) Attempts() *Table {
	return &Table{deadline.NewRows(s.store.db, pendingSQL), s.settle}
}

// Refunds returns the table of [RefundKind].
func (s *Service) Refunds() *Table {
	return &Table{deadline.NewRows(s.store.db, refundPendingSQL), s.sendRefunds}
}

// checkTime is the time after which TimeOut begins no further batch of calls to the provider. The next sweep goes on with
// the other rows. With a longer time, a provider that does not answer would delay the sweep; with a shorter one, a backlog
// of overdue checks would take more sweeps.
const checkTime = 5 * time.Second

// TimeOut checks those of the rows whose checks are overdue, and returns the number of those that ended. A row that the
// provider cannot decide now is no failure: its next check is later.
func (t *Table) TimeOut(ctx context.Context, ids []string) (done, locked int, err error) {
	rows, _ := keyset.ParseIDs(ids)
	began := time.Now()
	for batch := range slices.Chunk(rows, BatchSize) {
		ended, err := t.check(ctx, batch, deadline.Reconciler)
		done += ended
		if postgres.Unavailable(err) {
			return done, 0, fmt.Errorf("%w: %w", reconcile.ErrUnavailable, err)
		}
		if err != nil || time.Since(began) > checkTime {
			return done, 0, err
		}
	}
	return done, 0, nil
}
