package closesale

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/postgres"
)

//go:embed close_sale.sql
var closeSaleSQL string

const (
	// notice is the time that customers have left to pay when the sale of a product is closed. A shorter time would not let
	// them finish a payment.
	notice = time.Minute
	// pageSize is the largest number of orders that one statement examines. More would lock the orders that it moves for
	// longer. Fewer would need more statements.
	pageSize = 500
)

// Store moves the deadlines of orders in PostgreSQL.
type Store struct{ db *gorm.DB }

// NewStore returns a store in a database that [postgres.Open] connected to.
func NewStore(db *gorm.DB) *Store { return &Store{db} }

// hasProduct reports whether there is a product with this id.
func (s *Store) hasProduct(ctx context.Context, id uuid.UUID) (found bool, err error) {
	err = s.db.WithContext(ctx).Raw(`SELECT EXISTS (SELECT FROM products WHERE id = $1)`, id).Scan(&found).Error
	if err != nil {
		return false, fmt.Errorf("look for product %s: %w", id, err)
	}
	return found, nil
}

// movedOrder is an order whose deadline close_sale.sql has brought forward.
type movedOrder struct {
	ID         uuid.UUID `json:"id"`
	CustomerID uuid.UUID `json:"customer_id"`
}

// page is the row that close_sale.sql returns.
type page struct {
	Examined  int
	LastDueAt *time.Time // of the last order of the page; nil if the page is empty
	LastID    *uuid.UUID
	Deadline  time.Time
	Began     time.Time
	Moved     []movedOrder `gorm:"serializer:json"`
}

// closeSale walks through the pending orders, and calls observe after each page. It repeats the walk until it finds no
// order to move: an order whose hold ends during a walk moves back in the sequence of due times, and the walk may miss it.
func (s *Store) closeSale(
	ctx context.Context, product uuid.UUID, cancelKind, holdKind string, observe func([]movedOrder),
) (closed Closed, err error) {
	var began *time.Time
	for again := true; again; {
		again = false
		var p page
		for more := true; more; more = p.Examined == pageSize {
			if p, err = s.closePage(ctx, product, cancelKind, holdKind, p, began); err != nil {
				return Closed{}, err
			}
			observe(p.Moved)
			began = &p.Began
			if len(p.Moved) > 0 || closed.Deadline.IsZero() {
				closed.Deadline = p.Deadline
			}
			again = again || len(p.Moved) > 0
			closed.Orders += int64(len(p.Moved))
		}
	}
	return closed, nil
}

// closePage runs close_sale.sql for the page after another page.
func (s *Store) closePage(
	ctx context.Context, product uuid.UUID, cancelKind, holdKind string, after page, began *time.Time,
) (p page, err error) {
	lastID := uuid.Max // orders that are due exactly in the notice are not moved
	if after.LastID != nil {
		lastID = *after.LastID
	}
	_, err = postgres.Scan(ctx, s.db, &p, closeSaleSQL, product, notice.Microseconds(), cancelKind, holdKind,
		after.LastDueAt, lastID, began, pageSize)
	if err != nil {
		return p, fmt.Errorf("close the sale of product %s: %w", product, err)
	}
	return p, nil
}
