package refund

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/postgres"
	"example.com/shop/payments/internal/provider"
)

//go:embed hear.sql
var hearSQL string

// Hear stores an event about a refund, a charge or a dispute, and has the refunds checked that it is about. ours
// reports whether the event names this deployment. Hear returns the outcome of the event; "": it was stored before.
func (r *Service) Hear(ctx context.Context, e provider.Event, ours bool) (outcome string, err error) {
	var rows []struct {
		Outcome    string
		Task       string // "": nothing is due
		DueAt      time.Time
		ServerTime time.Time
	}
	_, err = postgres.Scan(ctx, r.db, &rows, hearSQL,
		e.ID, e.Type, e.Intent, Kind, provider.OptionalID(e.Refund), ours, e.About)
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
