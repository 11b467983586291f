package order

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"example.com/shop/internal/rest"
)

// placedBefore returns the order that the customer of a placement has placed before with the same idempotency key.
func (s *Store) placedBefore(ctx context.Context, p *placing) (*Order, error) {
	var fingerprint []byte
	err := s.db.WithContext(ctx).Raw(`SELECT fingerprint FROM orders WHERE id = $1`, p.before).Row().Scan(&fingerprint)
	if err != nil {
		return nil, fmt.Errorf("read the order with the same idempotency key: %w", err)
	}
	if p.IdempotencyKey != "" && !bytes.Equal(fingerprint, p.fingerprint()) {
		return nil, rest.KeyReused.Errorf("The Idempotency-Key belongs to order %s, which has other lines.", p.before)
	}
	return s.get(ctx, *p.before, p.customer)
}

// whyNotPlaced returns the reason why a placement cannot be accepted, with a field error for every wrong line, or nil if it
// can. products has the existing products of the lines. open has the lines of the customer's open orders.
func whyNotPlaced(p Placement, products map[uuid.UUID]Product, open []openLine, t terms) error {
	for _, check := range []func(Placement, map[uuid.UUID]Product) *rest.Error{unknownProducts, mixedCurrencies, outOfStock} {
		if rejection := check(p, products); rejection != nil {
			return rejection
		}
	}
	if rejection := tooManyOpen(p, products, open, t); rejection != nil {
		return rejection
	}
	return nil
}

func unknownProducts(p Placement, products map[uuid.UUID]Product) *rest.Error {
	return rejectLines(UnknownProduct, "Some of the products do not exist.", p, "product_id", func(line Line) string {
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
	return rejectLines(MixedCurrencies, "All products of an order must have one currency: place an order for each currency.", p, "product_id", func(line Line) string {
		return "is priced in " + products[line.ProductID].Currency
	})
}

func outOfStock(p Placement, products map[uuid.UUID]Product) *rest.Error {
	return rejectLines(OutOfStock, "There is not enough stock.", p, "quantity", func(line Line) string {
		product := products[line.ProductID]
		if line.Quantity <= product.Available {
			return ""
		}
		return fmt.Sprintf("%s: %d wanted, %d available", product.Name, line.Quantity, product.Available)
	})
}

// tooManyOpen checks the bounds of what a customer can hold without having paid. Its error names the open orders: all of
// them, or those with the product that the customer holds too many units of.
func tooManyOpen(p Placement, products map[uuid.UUID]Product, open []openLine, t terms) *rest.Error {
	if orders := ordersOf(open, nil); t.maxOpen > 0 && int64(len(orders)) >= t.maxOpen {
		rejection := TooManyOpen.Errorf("You have %d orders that are not paid, and can have at most %d: pay or cancel one of them.",
			len(orders), t.maxOpen)
		return withOpenOrders(rejection, orders)
	}
	units := make(map[uuid.UUID]int64)
	for _, line := range open {
		units[line.ProductID] += line.Quantity
	}
	var over []uuid.UUID
	rejection := rejectLines(TooManyOpen, "You would hold too many units of a product in orders that are not paid.", p, "quantity", func(line Line) string {
		if t.maxUnits == 0 || units[line.ProductID]+line.Quantity <= t.maxUnits {
			return ""
		}
		over = append(over, line.ProductID)
		return fmt.Sprintf("%s: %d wanted, %d in your open orders, at most %d of both together",
			products[line.ProductID].Name, line.Quantity, units[line.ProductID], t.maxUnits)
	})
	if rejection == nil {
		return nil
	}
	return withOpenOrders(rejection, ordersOf(open, over))
}

// ordersOf returns the ids of the orders that the lines belong to, each once. If products is not nil, it returns only those
// with one of the products.
func ordersOf(lines []openLine, products []uuid.UUID) []uuid.UUID {
	ids := []uuid.UUID{}
	for _, line := range lines {
		if !slices.Contains(ids, line.OrderID) && (products == nil || slices.Contains(products, line.ProductID)) {
			ids = append(ids, line.OrderID)
		}
	}
	return ids
}

func withOpenOrders(rejection *rest.Error, ids []uuid.UUID) *rest.Error {
	rejection.Extensions = map[string]any{"open_orders": ids}
	return rejection
}

// rejectLines returns an error of the kind. It has a field error for each line for which check returns a detail. It returns
// nil if check returns "" for all lines.
func rejectLines(kind rest.Kind, detail string, p Placement, field string, check func(Line) string) *rest.Error {
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
