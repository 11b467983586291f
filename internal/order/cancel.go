package order

import (
	"context"
	_ "embed"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/rest"
)

//go:embed cancel.sql
var cancelSQL string

// Cancel cancels an order for its customer, before it is due. It is idempotent. An order that is held stays pending:
// its customer's request is recorded, and the order is cancelled when its hold ends, unless it is paid before.
func (s *Service) Cancel(ctx context.Context, customer, id uuid.UUID) (*Order, error) {
	c, err := s.cancel(ctx, customer, id)
	if err != nil {
		return nil, rest.OutcomeUnknown(err, "Repeat the request: an order is cancelled once.")
	}
	if c.Changed {
		s.Notify(customer.String(), id.String())
		switch {
		case c.Status == Cancelled:
			s.metrics.cancelled.WithLabelValues(string(ByCustomer)).Inc()
		case s.cfg.HoldKind != "":
			s.cfg.HoldPublisher.Publish(ctx, delay.At(id.String(), *c.CancelRequestedAt, c.ServerTime))
		}
	}
	switch {
	case c.CancelReason == ByCustomer, c.Status == Pending && c.CancelRequestedAt != nil:
		return &c.Order, nil
	case c.Status == Paid:
		return nil, AlreadyPaid.Errorf("The order was paid at %s and cannot be cancelled any more.", stamp(*c.PaidAt))
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
	return s.run(ctx, id, cancelSQL, id, customer, s.store.RowKind(s.cfg.HoldKind))
}
