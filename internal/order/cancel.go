package order

import (
	"context"
	_ "embed"

	"github.com/google/uuid"

	"example.com/shop/internal/rest"
)

//go:embed cancel.sql
var cancelSQL string

// Cancel cancels an order for its customer, before its deadline. It is idempotent. It rejects an order that is held.
func (s *Service) Cancel(ctx context.Context, customer, id uuid.UUID) (*Order, error) {
	c, err := s.cancel(ctx, customer, id)
	switch {
	case err != nil:
		return nil, rest.OutcomeUnknown(err, "Repeat the request: an order is cancelled once.")
	case c.Changed:
		s.Notify(customer.String(), id.String())
		s.metrics.cancelled.WithLabelValues(string(ByCustomer)).Inc()
		return &c.Order, nil
	case c.CancelReason == ByCustomer:
		return &c.Order, nil
	case c.Status == Paid:
		return nil, AlreadyPaid.Errorf("The order was paid at %s and cannot be cancelled any more.", stamp(*c.PaidAt))
	case c.isHeld():
		return nil, CheckoutOpen.Errorf("The order has an open checkout: close it, and then cancel the order.")
	default:
		return nil, c.tooLate("cancelled by its customer")
	}
}

// cancel runs cancel.sql, which may wait for the locks of products.
func (s *Service) cancel(ctx context.Context, customer, id uuid.UUID) (*change, error) {
	leave, err := s.store.gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.run(ctx, id, cancelSQL, id, customer)
}
