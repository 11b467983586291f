package deadline

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/reconcile"
)

// Rows reads the rows of a table, for a reconciler. A [Table] has them. A table whose rows no statement times out needs
// only Rows, and a method TimeOut of its own, to be a [reconcile.Table].
type Rows struct {
	db               *gorm.DB
	pending, unknown string
}

// NewRows returns the rows that are read by the statements [Statements.Pending] and [Statements.Unknown].
func NewRows(db *gorm.DB, pending, unknown string) *Rows {
	return &Rows{db: db, pending: pending, unknown: unknown}
}

// Pending returns a page of at most limit pending rows, sorted by due time, with the time left to each due time by the
// database's clock. It returns only rows whose due times are at most within from now. A negative within selects the rows
// that are overdue by at least that much, and [reconcile.All] selects all. after is "" for the first page, and then the
// next of the previous page. next is "" after the last page.
func (r *Rows) Pending(
	ctx context.Context, after string, within time.Duration, limit int,
) (page []delay.Message, next string, err error) {
	var last keyset.Cursor
	var lastAt, micros any // NULL
	if after != "" {
		if last, err = keyset.ParseCursor(after); err != nil {
			return nil, "", fmt.Errorf("pending rows after %q: %w", after, err)
		}
		lastAt = last.At
	}
	if within < reconcile.All {
		micros = within.Microseconds()
	}
	var rows []struct {
		ID     uuid.UUID
		DueAt  time.Time
		LeftUs int64
	}
	if err := r.db.WithContext(ctx).Raw(r.pending, lastAt, last.ID, micros, limit).Scan(&rows).Error; err != nil {
		return nil, "", fmt.Errorf("read pending rows: %w", err)
	}
	for _, row := range rows {
		page = append(page, delay.In(row.ID.String(), microseconds(row.LeftUs)))
	}
	if len(rows) == limit {
		end := rows[limit-1]
		next = keyset.Cursor{At: end.DueAt, ID: end.ID}.String()
	}
	return page, next, nil
}

// Unknown returns those of the ids for which there is no row, pending or not. The reconciler removes the tasks of these
// ids, so a server that lacks new rows must not answer. For that the transaction also locks a row of reconcile_reports. A
// standby or a read-only server rejects the lock. On a primary whose synchronous standby was promoted, the commit never
// ends.
func (r *Rows) Unknown(ctx context.Context, ids []string) ([]string, error) {
	rows, unknown := keyset.ParseIDs(ids)
	var lookup pgx.Batch
	lookup.Queue(`SELECT FROM reconcile_reports ORDER BY kind LIMIT 1 FOR NO KEY UPDATE`)
	lookup.Queue(r.unknown, rows).Query(func(missing pgx.Rows) error {
		var id uuid.UUID
		_, err := pgx.ForEachRow(missing, []any{&id}, func() error {
			unknown = append(unknown, id.String())
			return nil
		})
		return err
	})
	if err := postgres.Pipeline(ctx, r.db, &lookup); err != nil {
		return nil, fmt.Errorf("look for ids without a row: %w", err)
	}
	return unknown, nil
}

func microseconds(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
