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
	c, err := s.store.cancel(ctx, id, customer, s.cfg.HoldKind)
	if err != nil {
		return nil, rest.OutcomeUnknown(notFound(err, id), "Repeat the request: an order is cancelled once.")
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
	return &c.Order, c.whyNotCancelled()
}

// cancel cancels an order, or records the request if the order is held. holdKind is the kind of the task to owe then,
// "" for none.
func (s *Store) cancel(ctx context.Context, id, customer uuid.UUID, holdKind string) (*change, error) {
	leave, err := s.gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return s.change(ctx, id, cancelSQL+orderSQL, id, customer, s.RowKind(holdKind))
}

// whyNotCancelled returns the reason why the customer has not cancelled an order after cancel.sql, or nil if the
// customer has cancelled it or has asked to cancel it.
func (o *Order) whyNotCancelled() error {
	switch {
	case o.CancelReason == ByCustomer, o.Status == Pending && o.CancelRequestedAt != nil:
		return nil
	case o.Status == Paid:
		return AlreadyPaid.Errorf("The order was paid at %s and cannot be cancelled any more.", stamp(*o.PaidAt))
	default:
		return o.tooLate("cancelled by its customer")
	}
}
