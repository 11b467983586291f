package deadline

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/reconcile"
)

// Rows reads the rows of a table, for a reconciler. A [Table] has them. A table whose rows no statement times out needs
// only Rows, and a method TimeOut of its own, to be a [reconcile.Table].
type Rows struct {
	db      *gorm.DB
	pending string
}

// NewRows returns the rows that are read by the statement [Statements.Pending].
func NewRows(db *gorm.DB, pending string) *Rows { return &Rows{db: db, pending: pending} }

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

func microseconds(us int64) time.Duration { return time.Duration(us) * time.Microsecond }
