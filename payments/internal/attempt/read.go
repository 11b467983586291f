package attempt

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
)

// attempts begins a query of attempts as their customers see them.
func (s *Service) attempts(ctx context.Context) *gorm.DB {
	return s.db.WithContext(ctx).Table("payment_attempts_shown")
}

// attempt returns the attempt that a condition describes, or nil if there is none.
func (s *Service) attempt(ctx context.Context, condition string, args ...any) (*Attempt, error) {
	var a Attempt
	result := s.attempts(ctx).Where(condition, args...).Scan(&a)
	switch {
	case result.Error != nil:
		return nil, fmt.Errorf("read payment attempt: %w", result.Error)
	case result.RowsAffected == 0:
		return nil, nil
	}
	return &a, nil
}

// OfOrder returns the attempts of one of a customer's orders, the latest first.
func (s *Service) OfOrder(ctx context.Context, customer, orderID uuid.UUID) ([]Attempt, error) {
	attempts := []Attempt{}
	query := s.attempts(ctx).Where("order_id = ? AND customer_id = ?", orderID, customer)
	if err := query.Order("number DESC").Scan(&attempts).Error; err != nil {
		return nil, fmt.Errorf("list payments of order %s: %w", orderID, err)
	}
	if len(attempts) > 0 {
		return attempts, nil
	}
	known, err := one[struct{ ID uuid.UUID }](ctx, s.db, "look for an order",
		`SELECT id FROM orders WHERE id = $1::uuid AND customer_id = $2::uuid`, orderID, customer)
	if err == nil && known == nil {
		err = order.NotFound(orderID)
	}
	return attempts, err
}

// List returns a page of a customer's attempts, the latest first, and the cursor of the next page. The cursor is nil
// after the last page.
func (s *Service) List(
	ctx context.Context, customer uuid.UUID, page rest.Page,
) (attempts []Attempt, next *keyset.Cursor, err error) {
	attempts = []Attempt{}
	query := s.attempts(ctx).Where("customer_id = ?", customer)
	if page.After != nil {
		query = query.Where("(opened_at, id) < (?, ?)", page.After.At, page.After.ID)
	}
	// One attempt more shows that there is a next page.
	if err := query.Order("opened_at DESC, id DESC").Limit(page.Limit + 1).Scan(&attempts).Error; err != nil {
		return nil, nil, fmt.Errorf("list payments: %w", err)
	}
	if len(attempts) > page.Limit {
		attempts = attempts[:page.Limit]
		last := attempts[page.Limit-1]
		next = &keyset.Cursor{At: last.OpenedAt, ID: last.ID}
	}
	return attempts, next, nil
}
