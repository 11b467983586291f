package order

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/background"
	"example.com/shop/internal/postgres"
)

//go:embed book.sql
var bookSQL string

const (
	bookEvery = 5 * time.Second
	// bookTimeout bounds a batch, because it keeps the locks of its orders while its commit waits for a standby.
	bookTimeout = 5 * time.Second
)

// keepBooks books ended orders until ctx ends, and then returns nil: book.sql says what that means. Any number of
// processes may do so, because each skips the orders that another one has locked.
func (s *Service) keepBooks(ctx context.Context) error {
	failed := false // the last run
	return background.Every(ctx, bookEvery, s.log, func(ctx context.Context) {
		n, err := s.store.Book(ctx)
		switch {
		case ctx.Err() != nil: // the process stops
			return
		case err != nil && !failed:
			s.log.WarnContext(ctx, "ended orders could not be booked; each run tries again, "+
				"and the next one that succeeds is logged", "error", err)
		case err == nil && failed:
			s.log.InfoContext(ctx, "ended orders are booked again", "orders", n)
		}
		failed = err != nil
	})
}

// Book books all ended orders that are not booked, in batches, and returns their number. It leaves orders that another
// session has locked to the next run. An error ends the run; the batches before it are booked.
func (s *Store) Book(ctx context.Context) (booked int64, err error) {
	for after := (uuid.UUID{}); ; {
		var batch struct {
			Orders int64
			Last   *uuid.UUID // nil: there is no order to book
		}
		ctx, cancel := context.WithTimeout(ctx, bookTimeout)
		_, err := postgres.Scan(ctx, s.db, &batch, bookSQL, after)
		cancel()
		switch {
		case err != nil:
			return booked, fmt.Errorf("book ended orders: %w", err)
		case batch.Last == nil:
			return booked, nil
		}
		booked += batch.Orders
		after = *batch.Last
	}
}
