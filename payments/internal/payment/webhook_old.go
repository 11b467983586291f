package payment

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"
)

//go:embed webhook_old.sql
var deleteOldEventsSQL string

const (
	// keepEvents is the time for which the rows of events are kept. The provider sends an event again for three days: with a
	// shorter time, a repetition would cost another check. Operators also look here for what the provider has sent; with a
	// longer time, the table would grow.
	keepEvents = 30 * 24 * time.Hour
	// deleteEventsEvery is the time between two runs. With a longer time, a run would delete more rows.
	deleteEventsEvery = time.Hour
	// maxDeletedEvents is the largest number of rows that one statement deletes. More would take longer than the
	// statement_timeout allows on a slow machine; fewer would need more statements.
	maxDeletedEvents = 10_000
)

// runDeletions deletes old events, reports and payments now and at intervals, until ctx ends.
func (s *Service) runDeletions(ctx context.Context) error {
	tick := time.NewTicker(deleteEventsEvery)
	defer tick.Stop()
	for {
		if err := errors.Join(s.store.deleteOldEvents(ctx, maxDeletedEvents), s.store.deleteOldReports(ctx)); err != nil && ctx.Err() == nil {
			s.log.WarnContext(ctx, "old events and reports of the payment provider are not deleted; it is tried again in an hour", "error", err)
		}
		s.deleteOldPayments(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// deleteOldEvents deletes the events that are older than keepEvents, at most limit in a statement.
func (s *Store) deleteOldEvents(ctx context.Context, limit int64) error {
	for {
		result := s.db.WithContext(ctx).Exec(deleteOldEventsSQL, keepEvents.Microseconds(), limit)
		if result.Error != nil {
			return fmt.Errorf("delete old events: %w", result.Error)
		}
		if result.RowsAffected < limit {
			return nil
		}
	}
}
