package order

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"example.com/shop/internal/batch"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/rest"
)

// Placement is a request for an order.
type Placement struct {
	// IdempotencyKey makes it safe to repeat a placement: a placement with the key of an earlier one returns the order
	// that the earlier one placed. "" means no key.
	IdempotencyKey string
	Lines          []Line
}

// Line requests a quantity of a product.
type Line struct {
	ProductID uuid.UUID
	Quantity  int64
}

const (
	maxLines    = 50   // of an order, which locks the product of each
	maxQuantity = 1000 // of a line; a larger one is more likely a mistake than an order
)

// fieldErrors returns all errors of a placement that can be found without a look at the products.
func (p Placement) fieldErrors() []rest.FieldError {
	if len(p.Lines) < 1 || len(p.Lines) > maxLines {
		return []rest.FieldError{{
			Pointer: "/items", Detail: fmt.Sprintf("must be a list of 1 to %d lines, has %d", maxLines, len(p.Lines)),
		}}
	}
	var errs []rest.FieldError
	lineOf := make(map[uuid.UUID]int, len(p.Lines))
	for i, line := range p.Lines {
		add := func(field, detail string) {
			errs = append(errs, rest.FieldError{Pointer: pointer(i, field), Detail: detail})
		}
		first, duplicate := lineOf[line.ProductID]
		switch {
		case line.ProductID == uuid.Nil:
			add("product_id", "must be the UUID of a product")
		case duplicate:
			add("product_id", "is the same as "+pointer(first, "product_id")+": order a product in one line")
		default:
			lineOf[line.ProductID] = i
		}
		if line.Quantity < 1 || line.Quantity > maxQuantity {
			add("quantity", fmt.Sprintf("must be a whole number from 1 to %d", maxQuantity))
		}
	}
	return errs
}

// pointer returns the JSON pointer to a field of a line of a placement.
func pointer(line int, field string) string { return fmt.Sprintf("/items/%d/%s", line, field) }

// fingerprint returns a hash of the lines, to detect that an idempotency key is reused for another placement. The
// order of the lines and the formatting of the request do not change it. It returns nil without a key.
func (p Placement) fingerprint() []byte {
	if p.IdempotencyKey == "" {
		return nil
	}
	lines := make([]string, len(p.Lines))
	for i, line := range p.Lines {
		lines[i] = fmt.Sprintf("%s %d\n", line.ProductID, line.Quantity)
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "")))
	return sum[:]
}

// Admit admits a placement. It returns [rest.Overloaded] while earlier placements wait too long for their batches, or
// too many are under way. It costs little: call it when the placement has been read, before anything else is done for
// it, and call done at its end.
func (s *Service) Admit() (done func(), err error) {
	done, err = s.placements.Admit()
	if err != nil {
		s.metrics.rejected.WithLabelValues(rest.Overloaded.Code).Inc()
		return nil, errOverloaded
	}
	return done, nil
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
	if s.cfg.Tracer != nil {
		placing.span = s.cfg.Tracer.Span(ctx)
	}
	err = s.placements.Do(ctx, placing) // placeBatch places it
	switch {
	case errors.Is(err, batch.ErrOverloaded):
		return nil, false, errOverloaded
	case err != nil:
		return nil, false, placementUnknown(fmt.Errorf("place order: %w", err))
	case placing.rejection != nil:
		return nil, false, placing.rejection
	case placing.existing != nil:
		o, err = s.existingOrder(ctx, placing)
		// The order is this placement's own if a transaction that has lost its connection placed it.
		return o, *placing.existing != placing.id, placementUnknown(err)
	default:
		s.setActions(placing.order)
		return placing.order, false, nil
	}
}

// errOverloaded rejects a placement because more arrive than can be placed: this placement, or the first one in the
// queue, has waited too long for its batch, or too many placements are under way.
var errOverloaded = rest.Overloaded.Errorf(
	"More orders arrive than the shop can place right now. Nothing was ordered: repeat the request in a moment.")

// placementUnknown replaces an error after which the order may or may not have been placed.
func placementUnknown(err error) error {
	return rest.OutcomeUnknown(err, "Repeat the request with the same Idempotency-Key: "+
		"it then returns the same order. Without a key, look at your orders first.")
}

// existingOrder returns the order that exists for a placement already. It returns an error if another placement has
// used the idempotency key.
func (s *Service) existingOrder(ctx context.Context, p *placing) (*Order, error) {
	var fingerprint []byte // nil if the order was placed without an idempotency key
	db := s.store.db.WithContext(ctx)
	err := db.Raw(`SELECT fingerprint FROM orders WHERE id = $1`, *p.existing).Row().Scan(&fingerprint)
	if err != nil {
		return nil, fmt.Errorf("read the order with the same idempotency key: %w", err)
	}
	if !bytes.Equal(fingerprint, p.fingerprint()) {
		return nil, rest.KeyReused.Errorf("The Idempotency-Key belongs to order %s, "+
			"which has other lines.", p.existing)
	}
	return s.Get(ctx, p.customer, *p.existing)
}
