package payment

import (
	"context"
	_ "embed"
	"fmt"
	"time"
)

//go:embed webhook_refund.sql
var webhookRefundSQL string

// received is a row that webhook_refund.sql returns.
type received struct {
	Outcome    string // of the event; "": it was stored before
	Task       string // "": nothing is due
	DueAt      time.Time
	ServerTime time.Time
}

// hearRefund stores an event about a refund, a charge or a dispute, and makes the refunds that it names due for a check. It
// returns at least one row.
func (s *Store) hearRefund(ctx context.Context, h *hint) (rows []received, err error) {
	err = s.rows(ctx, &rows, webhookRefundSQL, h.ID, h.Type, h.Intent, s.RowKind(RefundKind), h.refund, h.ours, h.About)
	if err != nil {
		return nil, fmt.Errorf("store event %s: %w", h.ID, err)
	}
	return rows, nil
}
