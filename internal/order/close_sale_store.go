package order

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	"github.com/google/uuid"
)

//go:embed close_sale.sql
var closeSaleSQL string

const (
	// closeSaleNotice is the time that customers have left to pay when the sale of a product is closed.
	closeSaleNotice = time.Minute
	// closeSalePage limits the orders that one statement of CloseSale examines, and so the time for which it locks those
	// that it moves.
	closeSalePage = 500
)

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

// salePage is the row that close_sale.sql returns.
type salePage struct {
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
	ctx context.Context, product uuid.UUID, heldKind string, observe func([]movedOrder),
) (closed SaleClosed, err error) {
	var began *time.Time
	for again := true; again; {
		again = false
		var page salePage
		for more := true; more; more = page.Examined == closeSalePage {
			if page, err = s.closeSalePage(ctx, product, heldKind, page, began); err != nil {
				return SaleClosed{}, err
			}
			observe(page.Moved)
			began = &page.Began
			if len(page.Moved) > 0 || closed.Deadline.IsZero() {
				closed.Deadline = page.Deadline
			}
			again = again || len(page.Moved) > 0
			closed.Orders += int64(len(page.Moved))
		}
	}
	return closed, nil
}

// closeSalePage runs close_sale.sql for the page after another page.
func (s *Store) closeSalePage(
	ctx context.Context, product uuid.UUID, heldKind string, after salePage, began *time.Time,
) (page salePage, err error) {
	lastID := uuid.Max // orders that are due exactly in the notice are not moved
	if after.LastID != nil {
		lastID = *after.LastID
	}
	_, err = s.row(ctx, &page, closeSaleSQL, product, closeSaleNotice.Microseconds(), CancelKind, heldKind,
		after.LastDueAt, lastID, began, closeSalePage)
	if err != nil {
		return page, fmt.Errorf("close the sale of product %s: %w", product, err)
	}
	return page, nil
}
