package order

import (
	"context"
	_ "embed"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"example.com/shop/internal/rest"
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

// SaleClosed is the result of [Service.CloseSale].
type SaleClosed struct {
	Orders   int64     `json:"orders"`   // orders whose deadline was brought forward
	Deadline time.Time `json:"deadline"` // by then all of them must be paid
}

// CloseSale brings the deadlines of a product's pending orders that are later than a minute from now forward to a minute
// from now. If such an order is held, its hold ends earlier by the same time. CloseSale works page by page: after an
// error some of the deadlines are moved. It is idempotent. It does not move orders that are placed after its start.
//
// The tasks are in the outbox, and only the relay publishes them, because they are not due for another minute.
func (s *Service) CloseSale(ctx context.Context, product uuid.UUID) (SaleClosed, error) {
	if err := s.store.requireProduct(ctx, product); err != nil {
		return SaleClosed{}, err
	}
	closed, err := s.store.closeSale(ctx, product, s.holdKind, func(moved []movedOrder) {
		s.metrics.forwarded.Add(float64(len(moved)))
		for _, o := range moved {
			s.Notify(o.CustomerID.String(), o.ID.String())
		}
	})
	return closed, rest.OutcomeUnknown(err, "Repeat the request: it moves the deadlines that are not moved yet.")
}

// answerCloseSale is the handler of POST /ops/api/products/{id}/close-sale. It reads all pending orders, as a sweep may do.
func (s *Service) answerCloseSale(c *gin.Context) error {
	product, err := rest.PathID(c, "a product")
	if err != nil {
		return err
	}
	ctx, cancel, err := rest.ExtendDeadline(c, rest.LongRequest)
	if err != nil {
		return err
	}
	defer cancel()
	closed, err := s.CloseSale(ctx, product)
	if err != nil {
		return err
	}
	c.JSON(http.StatusOK, closed)
	return nil
}

func (s *Store) requireProduct(ctx context.Context, id uuid.UUID) error {
	var found bool
	err := s.db.WithContext(ctx).Raw(`SELECT EXISTS (SELECT FROM products WHERE id = $1)`, id).Scan(&found).Error
	if err != nil {
		return fmt.Errorf("look for product %s: %w", id, err)
	}
	if !found {
		return rest.NotFound.Errorf("There is no product %s.", id)
	}
	return nil
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
