package attempt

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/rest"
)

// attempts begins a query for the fields of [Attempt]. The alias of payment_attempts is a, of orders o.
func (s *Service) attempts(ctx context.Context) *gorm.DB {
	const closing = `(a.state IN ('creating', 'open') AND (o.status <> 'pending'
		OR checkout_closes_at(o.expires_at, o.cancel_requested_at, a.checkout_until, a.session_until) <= now()))`
	return s.db.WithContext(ctx).Table("payment_attempts a").Joins("JOIN orders o ON o.id = a.order_id").
		Joins("LEFT JOIN refunds r ON r.attempt_id = a.id").
		Select(`a.id, a.order_id, a.state, a.applied, ` + closing + ` AS closing, a.amount_cents, upper(a.currency) AS currency,
			CASE WHEN NOT ` + closing + ` THEN coalesce(a.checkout_url, '') ELSE '' END AS checkout_url,
			CASE WHEN NOT ` + closing + ` THEN checkout_closes_at(o.expires_at, NULL, a.checkout_until, a.session_until) END AS checkout_until,
			a.opened_at, a.ended_at,
			a.session_expires_at,
			CASE WHEN r.id IS NOT NULL THEN json_build_object(
				'state', r.state, 'reason', CASE WHEN r.reason = 'late' AND o.status = 'paid' THEN 'duplicate' ELSE r.reason END,
				'amount_cents', r.amount_cents, 'ended_at', r.ended_at) END AS refund`) // see succeed.sql
}

// attempt returns the attempt that a condition on a and o describes, or nil if there is none.
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
	query := s.attempts(ctx).Where("a.order_id = ? AND o.customer_id = ?", orderID, customer)
	if err := query.Order("a.number DESC").Scan(&attempts).Error; err != nil {
		return nil, fmt.Errorf("list payments of order %s: %w", orderID, err)
	}
	if len(attempts) > 0 {
		return attempts, nil
	}
	known, err := one[struct{ ID uuid.UUID }](ctx, s.db, "look for an order",
		`SELECT id FROM orders WHERE id = $1::uuid AND customer_id = $2::uuid`, orderID, customer)
	if err == nil && known == nil {
		err = noOrder(orderID)
	}
	return attempts, err
}

// List returns a page of a customer's attempts, the latest first, and the cursor of the next page. The cursor is nil
// after the last page.
func (s *Service) List(
	ctx context.Context, customer uuid.UUID, page rest.Page,
) (attempts []Attempt, next *keyset.Cursor, err error) {
	attempts = []Attempt{}
	query := s.attempts(ctx).Where("o.customer_id = ?", customer)
	if page.After != nil {
		query = query.Where("(a.opened_at, a.id) < (?, ?)", page.After.At, page.After.ID)
	}
	// One attempt more shows that there is a next page.
	if err := query.Order("a.opened_at DESC, a.id DESC").Limit(page.Limit + 1).Scan(&attempts).Error; err != nil {
		return nil, nil, fmt.Errorf("list payments: %w", err)
	}
	if len(attempts) > page.Limit {
		attempts = attempts[:page.Limit]
		last := attempts[page.Limit-1]
		next = &keyset.Cursor{At: last.OpenedAt, ID: last.ID}
	}
	return attempts, next, nil
}
