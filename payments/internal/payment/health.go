package payment

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/app"
)

var (
	//go:embed invariants.sql
	invariantsSQL string
	//go:embed stats.sql
	statsSQL string
	//go:embed unsettled.sql
	unsettledSQL string
)

// Invariants returns up to 1,000 violations of the invariants of payments. A healthy database has none. bound is how
// long a check may be overdue. The check reads the attempts of pending orders that had a checkout, those of orders that are not
// booked, and the refunds that have not ended; if full, it reads every attempt and refund. Only ctx limits its time.
func (s *Store) Invariants(ctx context.Context, bound time.Duration, full bool) ([]app.Violation, error) {
	return app.FindViolations(ctx, s.db, full, invariantsSQL, bound.Microseconds(), full)
}

// Stats returns the answer of GET /ops/api/payments: attempts, refunds, webhooks and money. It reads every attempt.
func (s *Store) Stats(ctx context.Context) (json.RawMessage, error) {
	var stats []byte
	if err := s.db.WithContext(ctx).Raw(statsSQL).Row().Scan(&stats); err != nil {
		return nil, fmt.Errorf("read the state of payments: %w", err)
	}
	return stats, nil
}

// unsettled is the row that unsettled.sql returns. Ages are in seconds.
type unsettled struct {
	Creating, Open, Closing int64
	OldestClosing           float64
	Unconfirmed             int64
	OldestUnconfirmed       float64
	Failed                  int64
}

// NewCollector returns a collector of the attempts and refunds that have not ended.
func NewCollector(s *Store) prometheus.Collector {
	return newGauges(s.gauges,
		gauge{"payment_attempts", "Live payment attempts, by state: creating, open, or closing " +
			"(the provider is being asked to expire them).", []string{"state"}},
		gauge{"payment_oldest_closing_seconds",
			"Time that the oldest closing attempt has waited for the provider's answer, in seconds.", nil},
		gauge{"payment_refunds_unconfirmed", "Refunds that the provider has not confirmed.", nil},
		gauge{"payment_refund_oldest_seconds",
			"Age of the oldest refund that the provider has not confirmed, in seconds.", nil},
		gauge{"payment_refunds_failed", "Refunds that failed at the provider and wait for an operator.", nil})
}

func (s *Store) gauges(ctx context.Context, set setGauge) error {
	var u unsettled
	if _, err := s.row(ctx, &u, unsettledSQL); err != nil {
		return err
	}
	set("payment_attempts", float64(u.Creating), "creating")
	set("payment_attempts", float64(u.Open), "open")
	set("payment_attempts", float64(u.Closing), "closing")
	set("payment_oldest_closing_seconds", u.OldestClosing)
	set("payment_refunds_unconfirmed", float64(u.Unconfirmed))
	set("payment_refund_oldest_seconds", u.OldestUnconfirmed)
	set("payment_refunds_failed", float64(u.Failed))
	return nil
}
