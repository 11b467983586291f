package payment

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/gorm"

	"example.com/shop/internal/app"
	"example.com/shop/internal/postgres"
	"example.com/shop/payments/internal/books"
	"example.com/shop/payments/internal/provider"
)

var (
	//go:embed invariants.sql
	invariantsSQL string
	//go:embed stats.sql
	statsSQL string
	//go:embed unsettled.sql
	unsettledSQL string
)

// invariants returns up to 1,000 violations of the invariants of payments. A healthy database has none. bound is how
// long a check may be overdue. The check reads the attempts of pending orders that had a checkout, those of orders
// that are not booked, and the refunds that have not ended; if full, it reads every attempt and refund. Only ctx
// limits its time.
func invariants(ctx context.Context, db *gorm.DB, bound time.Duration, full bool) ([]app.Violation, error) {
	return app.FindViolations(ctx, db, full, invariantsSQL, bound.Microseconds(), full)
}

// stats returns the answer of GET /ops/api/payments: attempts, refunds and money. It reads every attempt.
func stats(ctx context.Context, db *gorm.DB) (json.RawMessage, error) {
	var stats []byte
	if err := db.WithContext(ctx).Raw(statsSQL).Row().Scan(&stats); err != nil {
		return nil, fmt.Errorf("read the state of payments: %w", err)
	}
	return stats, nil
}

// collector reads what has not ended, and the last report of the books, at each scrape.
type collector struct {
	db    *gorm.DB
	books *books.Reconciliation
}

// gauges are the metrics of [collector].
var gauges = func() map[string]*prometheus.Desc {
	descs := map[string]*prometheus.Desc{}
	add := func(name, help string, labels ...string) { descs[name] = prometheus.NewDesc(name, help, labels, nil) }
	add("payment_attempts",
		"Live payment attempts, by state: creating, open, or closing (the provider is being asked to expire them).", "state")
	add("payment_oldest_closing_seconds",
		"Time that the oldest closing attempt has waited for the provider's answer, in seconds.")
	add("payment_refunds_unconfirmed", "Refunds that the provider has not confirmed.")
	add("payment_refund_oldest_seconds", "Age of the oldest refund that the provider has not confirmed, in seconds.")
	add("payment_refunds_failed", "Refunds that failed at the provider and wait for an operator.")
	add("payment_unclaimed_cents", "Money at the payment provider that is this deployment's and matches no attempt, "+
		"without what an operator keeps, in the currency's smallest unit.", "currency")
	add("payment_books_differences",
		"Amounts of attempts that differ in the payment provider's books and in the tables.", "currency")
	add("payment_lost_sessions", "Open sessions at the payment provider whose attempts the database does not have, "+
		"and that no operator has looked at.")
	add("payment_books_age_seconds", "Age of the last report of the payment provider's books, in seconds.")
	return descs
}()

// Describe implements [prometheus.Collector].
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range gauges {
		ch <- desc
	}
}

// Collect implements [prometheus.Collector]. If the database does not answer within a second, the scrape lacks the
// metrics.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	set := func(name string, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(gauges[name], prometheus.GaugeValue, value, labels...)
	}
	var u struct { // ages are in seconds
		Creating, Open, Closing, Unconfirmed, Failed int64
		OldestClosing, OldestUnconfirmed             float64
	}
	if _, err := postgres.Scan(ctx, c.db, &u, unsettledSQL); err != nil {
		return
	}
	set("payment_attempts", float64(u.Creating), "creating")
	set("payment_attempts", float64(u.Open), "open")
	set("payment_attempts", float64(u.Closing), "closing")
	set("payment_oldest_closing_seconds", u.OldestClosing)
	set("payment_refunds_unconfirmed", float64(u.Unconfirmed))
	set("payment_refund_oldest_seconds", u.OldestUnconfirmed)
	set("payment_refunds_failed", float64(u.Failed))
	last, err := c.books.Last(ctx)
	if err != nil || last == nil {
		return
	}
	set("payment_lost_sessions", float64(last.LostSessions))
	set("payment_books_age_seconds", time.Since(last.MadeAt).Seconds())
	for _, part := range last.Currencies {
		currency := strings.ToUpper(part.Currency)
		set("payment_unclaimed_cents", float64(part.UnclaimedCents-part.KeptCents), currency)
		set("payment_books_differences", float64(part.DifferenceCount), currency)
	}
}

// checkPrices checks that the provider charges the price of each product. A price below the smallest amount is no
// error, because an order may have several units.
func checkPrices(ctx context.Context, db *gorm.DB) error {
	var prices []struct {
		Name, Currency string
		PriceCents     int64
	}
	_, err := postgres.Scan(ctx, db, &prices, `
		SELECT min(name) AS name, currency, price_cents FROM products GROUP BY currency, price_cents
		ORDER BY currency, price_cents`)
	if err != nil {
		return fmt.Errorf("read the prices: %w", err)
	}
	var wrong []string
	for _, p := range prices {
		c := provider.ChargeOf(p.Currency)
		c.Least = 0
		if why := c.WhyNot(p.PriceCents, p.Currency); why != "" {
			wrong = append(wrong, fmt.Sprintf("%.40q costs %s, and %s", p.Name, provider.Amount(p.PriceCents, p.Currency), why))
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	const shown = 3
	text := strings.Join(wrong[:min(len(wrong), shown)], "; ")
	if more := len(wrong) - shown; more > 0 {
		text += fmt.Sprintf("; and %d more prices", more)
	}
	return errors.New(text + ": change the price")
}
