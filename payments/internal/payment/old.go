package payment

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"gorm.io/gorm"

	"example.com/shop/internal/background"
)

const (
	// deleteEvery is the time between two deletions of old events.
	deleteEvery = time.Hour
	// maxDeleted is the number of rows that one statement deletes within its statement_timeout, also on a slow machine.
	maxDeleted = 10_000
)

// deleteOldSQL deletes at most $1 old events. The provider sends an event again for three days, and operators look here
// for what it has sent.
const deleteOldSQL = `DELETE FROM provider_events WHERE id IN (
	SELECT id FROM provider_events WHERE received_at < now() - interval '30 days'
	ORDER BY received_at LIMIT $1::bigint)`

// runDeletions deletes old events every hour, until ctx ends.
func runDeletions(ctx context.Context, db *gorm.DB, log *slog.Logger) error {
	return background.Every(ctx, deleteEvery, log, func(ctx context.Context) {
		if err := deleteOld(ctx, db, maxDeleted); err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "old events of payments are not deleted; it is tried again", "error", err)
		}
	})
}

// deleteOld deletes old events, at most limit rows in a statement.
func deleteOld(ctx context.Context, db *gorm.DB, limit int64) error {
	for {
		result := db.WithContext(ctx).Exec(deleteOldSQL, limit)
		if result.Error != nil {
			return fmt.Errorf("delete old events: %w", result.Error)
		}
		if result.RowsAffected < limit {
			return nil
		}
	}
}
