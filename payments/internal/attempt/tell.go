package attempt

import (
	"context"
	_ "embed"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/payments/internal/provider"
)

//go:embed tell.sql
var tellSQL string

// told is the row that tell.sql returns.
type told struct {
	Attempt taken `gorm:"embedded"`
	Taken   bool  // reports whether the attempt is to be settled now
}

// Hear settles the attempt that an event is about, unless the event tells nothing new. It reports whether there is such
// an attempt. Events are not stored: a repeated one has the provider asked once more, at most.
func (s *Service) Hear(ctx context.Context, e provider.Event) (known bool, err error) {
	return s.tell(ctx, provider.OptionalID(e.Attempt), e.Session, e.Complete, 0)
}

// Returned asks the provider about the live attempt of one of a customer's orders, because the customer has come back
// from the checkout. It does nothing if there is no such attempt, or if the customer came back less than 10 s ago: a
// customer who repeats the request must not use up the calls to the provider.
func (s *Service) Returned(ctx context.Context, customer, orderID uuid.UUID) error {
	o, err := s.live(ctx, customer, orderID)
	switch {
	case err != nil:
		return err
	case o.Attempt.SessionID == "":
		return nil
	}
	if _, err := s.tell(ctx, &o.Attempt.ID, o.Attempt.SessionID, false, 10*time.Second); err != nil {
		return rest.OutcomeUnknown(err, "Repeat the request.")
	}
	return nil
}

// tell settles an attempt whose session may have ended, unless that is nothing new, or somebody told the same less than
// a time ago. It reports whether there is such an attempt.
func (s *Service) tell(
	ctx context.Context, id *uuid.UUID, session string, complete bool, ago time.Duration,
) (known bool, err error) {
	row, err := one[told](ctx, s.db, "take an attempt", tellSQL,
		id, session, complete, ago.Microseconds(), maxCreating.Microseconds(), Kind)
	if err != nil || row == nil {
		return false, err
	}
	if row.Taken {
		s.settleNow(ctx, row.Attempt)
	}
	return true, nil
}

// live returns one of a customer's orders with its live attempt.
func (s *Service) live(ctx context.Context, customer, orderID uuid.UUID) (*live, error) {
	o, err := one[live](ctx, s.db, "read the live attempt", liveSQL, orderID, customer, maxCreating.Microseconds())
	if err == nil && o == nil {
		err = order.NotFound(orderID)
	}
	return o, err
}
