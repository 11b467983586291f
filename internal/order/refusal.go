package order

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
)

// placedBefore returns the order that the idempotency key belongs to, nil if there is none.
func (s *Store) placedBefore(ctx context.Context, customer uuid.UUID, p Placement) (*Order, error) {
	if p.IdempotencyKey == "" {
		return nil, nil
	}
	var before struct {
		ID          uuid.UUID
		Fingerprint []byte
	}
	found, err := s.row(ctx, &before, `SELECT id, fingerprint FROM orders WHERE customer_id = $1 AND idempotency_key = $2`,
		customer, p.IdempotencyKey)
	switch {
	case err != nil:
		return nil, fmt.Errorf("look up idempotency key: %w", err)
	case !found:
		return nil, nil
	case !bytes.Equal(before.Fingerprint, p.fingerprint()):
		return nil, Errorf(CodeKeyReused, "The Idempotency-Key belongs to order %s, which asks for something else.", before.ID)
	}
	return s.get(ctx, before.ID, customer)
}

// whyNotPlaced names every line at fault of a placement that wrote nothing, by the products that kept it from that.
func whyNotPlaced(p Placement, locked []Product) error {
	products := make(map[uuid.UUID]Product, len(locked))
	for _, product := range locked {
		products[product.ID] = product
	}
	for _, rule := range []func(Placement, map[uuid.UUID]Product) *Error{unknownProducts, mixedCurrencies, outOfStock} {
		if refusal := rule(p, products); refusal != nil {
			return refusal
		}
	}
	return fmt.Errorf("nothing was placed, for no reason: %+v of %+v", p.Lines, locked)
}

func unknownProducts(p Placement, products map[uuid.UUID]Product) *Error {
	return refuse(CodeUnknownProduct, "Not everything that was ordered is on sale here.", p, "product_id", func(line Line) string {
		if _, known := products[line.ProductID]; known {
			return ""
		}
		return fmt.Sprintf("there is no product %s", line.ProductID)
	})
}

func mixedCurrencies(p Placement, products map[uuid.UUID]Product) *Error {
	var currencies []string
	for _, line := range p.Lines {
		if c := products[line.ProductID].Currency; !slices.Contains(currencies, c) {
			currencies = append(currencies, c)
		}
	}
	if len(currencies) == 1 {
		return nil
	}
	return refuse(CodeMixedCurrencies, "One order has one currency: place an order for each.", p, "product_id", func(line Line) string {
		return "is priced in " + products[line.ProductID].Currency
	})
}

func outOfStock(p Placement, products map[uuid.UUID]Product) *Error {
	return refuse(CodeOutOfStock, "There is not enough left of what was ordered.", p, "quantity", func(line Line) string {
		product := products[line.ProductID]
		if line.Quantity <= product.Available {
			return ""
		}
		return fmt.Sprintf("%s: %d wanted, %d available", product.Name, line.Quantity, product.Available)
	})
}

// refuse names a field of every line that a rule has something to say about, and returns nil if it has
// nothing to say.
func refuse(code Code, detail string, p Placement, field string, rule func(Line) string) *Error {
	var faults []Fault
	for i, line := range p.Lines {
		if fault := rule(line); fault != "" {
			faults = append(faults, Fault{Pointer: pointer(i, field), Detail: fault})
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return &Error{Code: code, Detail: detail, Faults: faults}
}
