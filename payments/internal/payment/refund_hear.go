package payment

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/postgres"
)

//go:embed refund_hear.sql
var refundHearSQL string

// hear stores an event about a refund, a charge or a dispute, and has the refunds checked that it is about. ours reports
// whether the event names this deployment. hear returns the outcome of the event; "": it was stored before.
func (r *Refunds) hear(ctx context.Context, e Event, ours bool) (outcome string, err error) {
	var rows []struct {
		Outcome    string
		Task       string // "": nothing is due
		DueAt      time.Time
		ServerTime time.Time
	}
	_, err = postgres.Scan(ctx, r.db, &rows, refundHearSQL,
		e.ID, e.Type, e.Intent, r.tasks.RowKind(RefundKind), optionalID(e.Refund), ours, e.About)
	if err != nil {
		return "", fmt.Errorf("store event %s: %w", e.ID, err)
	}
	for _, row := range rows {
		outcome = row.Outcome
		if row.Task != "" {
			r.publish.Publish(ctx, delay.At(row.Task, row.DueAt, row.ServerTime))
		}
	}
	return outcome, nil
}
