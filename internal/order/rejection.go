package order

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"example.com/shop/internal/rest"
)

// placedBefore returns the order that was placed with the idempotency key, or nil if there is none.
func (s *Store) placedBefore(ctx context.Context, customer uuid.UUID, p Placement) (*Order, error) {
	if p.IdempotencyKey == "" {
		return nil, nil
	}
	var before struct {
		ID          uuid.UUID
		Fingerprint []byte
	}
	result := s.db.WithContext(ctx).Table("orders").Select("id, fingerprint").
		Where("customer_id = ? AND idempotency_key = ?", customer, p.IdempotencyKey).Scan(&before)
	switch {
	case result.Error != nil:
		return nil, fmt.Errorf("look up idempotency key: %w", result.Error)
	case result.RowsAffected == 0:
		return nil, nil
	case !bytes.Equal(before.Fingerprint, p.fingerprint()):
		return nil, rest.KeyReused.Errorf("The Idempotency-Key belongs to order %s, which has other lines.", before.ID)
	}
	return s.get(ctx, before.ID, customer)
}

// whyNotPlaced returns the reason why place.sql wrote nothing, with a field error for every wrong line. locked has the
// existing products of the lines, as they were while the statement held their locks.
func whyNotPlaced(p Placement, locked []Product) error {
	products := make(map[uuid.UUID]Product, len(locked))
	for _, product := range locked {
		products[product.ID] = product
	}
	for _, check := range []func(Placement, map[uuid.UUID]Product) *rest.Error{unknownProducts, mixedCurrencies, outOfStock} {
		if rejection := check(p, products); rejection != nil {
			return rejection
		}
	}
	return fmt.Errorf("internal inconsistency: place.sql wrote no order, although all products exist, have one currency "+
		"and enough stock: lines %+v, products %+v", p.Lines, locked)
}

func unknownProducts(p Placement, products map[uuid.UUID]Product) *rest.Error {
	return reject(UnknownProduct, "Some of the products do not exist.", p, "product_id", func(line Line) string {
		if _, known := products[line.ProductID]; known {
			return ""
		}
		return fmt.Sprintf("there is no product %s", line.ProductID)
	})
}

func mixedCurrencies(p Placement, products map[uuid.UUID]Product) *rest.Error {
	var currencies []string
	for _, line := range p.Lines {
		if c := products[line.ProductID].Currency; !slices.Contains(currencies, c) {
			currencies = append(currencies, c)
		}
	}
	if len(currencies) == 1 {
		return nil
	}
	return reject(MixedCurrencies, "All products of an order must have one currency: place an order for each currency.", p, "product_id", func(line Line) string {
		return "is priced in " + products[line.ProductID].Currency
	})
}

func outOfStock(p Placement, products map[uuid.UUID]Product) *rest.Error {
	return reject(OutOfStock, "There is not enough stock.", p, "quantity", func(line Line) string {
		product := products[line.ProductID]
		if line.Quantity <= product.Available {
			return ""
		}
		return fmt.Sprintf("%s: %d wanted, %d available", product.Name, line.Quantity, product.Available)
	})
}

// reject returns an error of the kind. It has a field error for each line for which check returns a detail. reject
// returns nil if check returns "" for all lines.
func reject(kind rest.Kind, detail string, p Placement, field string, check func(Line) string) *rest.Error {
	var errs []rest.FieldError
	for i, line := range p.Lines {
		if detail := check(line); detail != "" {
			errs = append(errs, rest.FieldError{Pointer: pointer(i, field), Detail: detail})
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return &rest.Error{Kind: kind, Detail: detail, Fields: errs}
}
