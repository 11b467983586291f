package order

import (
	"context"
	_ "embed"
	"time"

	"example.com/shop/internal/app"
)

//go:embed invariants.sql
var invariantsSQL string

// figures returns the statements of the figures of orders, by their names.
func figures() map[string]string {
	const timeouts = `SELECT ended_by AS actor, due_at, cancelled_at AS ended_at FROM orders WHERE cancel_reason = 'timeout'`
	return map[string]string{"orders": app.BacklogOf("orders", "due_at"), "lateness": app.LatenessOf(timeouts)}
}

// Invariants returns up to 1,000 violations of the invariants. A healthy database has none. bound is how long past
// its due time an order may be pending. The check reads the orders that are pending or not booked; if full, it reads
// all orders, and also compares the books with them. Only ctx limits its time.
func (s *Store) Invariants(ctx context.Context, bound time.Duration, full bool) ([]app.Violation, error) {
	return app.FindViolations(ctx, s.db, full, invariantsSQL, bound.Microseconds(), full)
}
