package order

import (
	"context"
	_ "embed"

	"github.com/google/uuid"

	"example.com/shop/internal/rest"
)

//go:embed pay.sql
var paySQL string

// Pay pays an order at once, before its deadline. It is idempotent. It rejects an order that is held.
func (s *Service) Pay(ctx context.Context, customer, id uuid.UUID) (*Order, error) {
	c, err := s.run(ctx, id, paySQL, id, customer)
	if err != nil {
		return nil, rest.OutcomeUnknown(err, "Repeat the request: an order is paid once.")
	}
	if c.Changed {
		s.metrics.paid.Inc()
		s.Notify(customer.String(), id.String())
	}
	if c.Status == Paid {
		return &c.Order, nil
	}
	if err := c.WhyNotPayable(); err != nil {
		return nil, err
	}
	return nil, CheckoutOpen.Errorf("The order has an open checkout: pay it there.")
}

// WhyNotPayable returns the reason why a payment of the order cannot begin at the time ServerTime, or nil if it can.
// The fields Status, CancelReason, ExpiresAt, HoldUntil, PaidAt, CancelledAt and ServerTime must
// be set. The result is the same for an order that is held.
func (o *Order) WhyNotPayable() error {
	switch {
	case o.Status == Paid:
		return AlreadyPaid.Errorf("The order was paid at %s.", stamp(*o.PaidAt))
	case o.CancelReason == ByCustomer:
		return AlreadyCancelled.Errorf("The order was cancelled by its customer at %s and cannot be paid any more.",
			stamp(*o.CancelledAt))
	case o.Status == Cancelled || !o.ServerTime.Before(o.ExpiresAt):
		return o.tooLate("paid")
	default:
		return nil
	}
}
