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
func (s *Store) storeEvent(ctx context.Context, e *event) (row received, err error) {
	if e.intent != "" {
		_, err = s.row(ctx, &row, webhookRefundSQL, e.id, e.eventType, e.intent, RefundKind)
	} else {
		_, err = s.row(ctx, &row, webhookSQL, e.id, e.eventType, e.attempt, e.session, SettleKind)
	}
	if err != nil {
		return received{}, fmt.Errorf("store event %s: %w", e.id, err)
	}
	return row, nil
}
