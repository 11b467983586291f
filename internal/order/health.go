package order

import (
	"context"
	_ "embed"
	"time"

	"example.com/shop/internal/app"
)

var (
	//go:embed invariants.sql
	invariantsSQL string
	//go:embed backlog.sql
	backlogSQL string
	//go:embed lateness.sql
	latenessSQL string
)

// Invariants returns up to 1,000 violations of the invariants. A healthy database has none. bound is how long past
// its due time an order may be pending. The check reads the orders that are pending or not booked; if full, it reads
// all orders, and also compares the books with them. Only ctx limits its time.
func (s *Store) Invariants(ctx context.Context, bound time.Duration, full bool) ([]app.Violation, error) {
	return app.FindViolations(ctx, s.db, full, invariantsSQL, bound.Microseconds(), full)
}
