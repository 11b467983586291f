package order

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"example.com/shop/internal/batch"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/rest"
)

// Admit returns [rest.Overloaded] while Place would reject a placement because too many wait or are being placed. It
// costs little: call it before anything else is done for a placement.
func (s *Service) Admit() error {
	if s.placements.Admit() != nil {
		s.metrics.rejected.WithLabelValues(rest.Overloaded.Code).Inc()
		return errOverloaded
	}
	return nil
}

// Place places an order: it reserves the stock, and the time to pay begins. If the customer has placed an order with
// the same idempotency key before, Place returns that order in its present state, and replayed is true.
func (s *Service) Place(ctx context.Context, customer uuid.UUID, p Placement) (o *Order, replayed bool, err error) {
	defer func() {
		switch {
		case err != nil:
			s.metrics.rejected.WithLabelValues(rest.AsError(err).Class.Code).Inc()
		case o != nil && !replayed: // o is nil after a panic
			s.metrics.placed.Inc()
		}
	}()
	if errs := p.fieldErrors(); len(errs) > 0 {
		return nil, false, rest.InvalidFields(errs...)
	}
	placing := &placing{id: keyset.NewID(), customer: customer, Placement: p}
	err = s.placements.Do(ctx, placing) // placeBatch places it
	switch {
	case errors.Is(err, batch.ErrOverloaded):
		return nil, false, errOverloaded
	case err != nil:
		return nil, false, placementUnknown(fmt.Errorf("place order: %w", err))
	case placing.rejection != nil:
		return nil, false, placing.rejection
	case placing.existing != uuid.Nil:
		o, err = s.Get(ctx, customer, placing.existing)
		// The order is this placement's own if a transaction that has lost its connection placed it.
		return o, placing.existing != placing.id, placementUnknown(err)
	default:
		s.setActions(placing.order)
		return placing.order, false, nil
	}
}

// errOverloaded rejects a placement because more arrive than can be placed.
var errOverloaded = rest.Overloaded.Errorf(
	"More orders arrive than the shop can place right now. Nothing was ordered: repeat the request in a moment.")

// placementUnknown replaces an error after which the order may or may not have been placed.
func placementUnknown(err error) error {
	return rest.OutcomeUnknown(err, "Repeat the request with the same Idempotency-Key: "+
		"it then returns the same order. Without a key, look at your orders first.")
}
