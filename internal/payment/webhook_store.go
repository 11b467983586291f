package payment

import (
	"context"
	_ "embed"
	"fmt"
	"time"
)

var (
	//go:embed webhook.sql
	webhookSQL string
	//go:embed webhook_refund.sql
	webhookRefundSQL string
)

// received is the row that webhook.sql and webhook_refund.sql return.
type received struct {
	Stored     bool
	Task       string // "": nothing is due
	DueAt      time.Time
	ServerTime time.Time
}

// storeEvent stores an event, and makes the attempt or the refund that it names due for a check, in one transaction.
func (s *Store) storeEvent(ctx context.Context, h *hint) (row received, err error) {
	if h.intent != "" {
		_, err = s.row(ctx, &row, webhookRefundSQL, h.id, h.kind, h.intent, RefundKind)
	} else {
		_, err = s.row(ctx, &row, webhookSQL, h.id, h.kind, h.attempt, h.session, SettleKind)
	}
	if err != nil {
		return received{}, fmt.Errorf("store event %s: %w", h.id, err)
	}
	return row, nil
}
