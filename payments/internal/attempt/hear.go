package attempt

import (
	"context"
	_ "embed"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/payments/internal/provider"
)

var (
	//go:embed hear.sql
	hearSQL string
	//go:embed returned.sql
	returnedSQL string
)

// heard is the row that hear.sql and returned.sql return.
type heard struct {
	Outcome string // of an event; "": it was stored before
	Attempt taken  `gorm:"embedded"`
	Taken   bool   // reports whether the attempt is to be settled now
}

// Hear stores an event about a session, and settles the attempt that the session belongs to, unless the event is known
// or tells nothing new. ours reports whether the event names this deployment. Hear returns the outcome of the event;
// "": it was stored before.
func (s *Service) Hear(ctx context.Context, e provider.Event, ours bool) (outcome string, err error) {
	row, err := one[heard](ctx, s.db, "store an event", hearSQL,
		e.ID, e.Type, provider.OptionalID(e.Attempt), e.Session, e.Complete, ours, maxCreating.Microseconds(),
		Kind)
	if err != nil {
		return "", err
	}
	if row.Taken {
		s.settleNow(ctx, row.Attempt)
	}
	return row.Outcome, nil
}

// Returned asks the provider about the live attempt of one of a customer's orders, because the customer has come back
// from the checkout. It does nothing if there is no such attempt, or if the customer came back less than 10 s ago.
func (s *Service) Returned(ctx context.Context, customer, orderID uuid.UUID) error {
	row, err := one[heard](ctx, s.db, "check a payment", returnedSQL,
		orderID, customer, maxCreating.Microseconds(), Kind)
	switch {
	case err != nil:
		return rest.OutcomeUnknown(err, "Repeat the request.")
	case row == nil:
		return order.NotFound(orderID)
	case row.Taken:
		s.settleNow(ctx, row.Attempt)
	}
	return nil
}
