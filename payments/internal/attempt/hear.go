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
	Attempt taken `gorm:"embedded"`
	Taken   bool  // reports whether the attempt is to be settled now
}

// Hear settles the attempt that an event is about, unless the event tells nothing new. It reports whether there is such
// an attempt. Events are not stored: a repeated one has the provider asked once more, at most.
func (s *Service) Hear(ctx context.Context, e provider.Event) (known bool, err error) {
	row, err := one[heard](ctx, s.db, "take the attempt of an event", hearSQL,
		provider.OptionalID(e.Attempt), e.Session, e.Complete, maxCreating.Microseconds(), Kind)
	if err != nil || row == nil {
		return false, err
	}
	if row.Taken {
		s.settleNow(ctx, row.Attempt)
	}
	return true, nil
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
