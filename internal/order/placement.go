package order

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"example.com/shop/internal/rest"
)

// Placement is a request for an order.
type Placement struct {
	// IdempotencyKey makes it safe to repeat a placement: a placement with the key of an earlier one returns the order
	// that the earlier one placed. "" means no key.
	IdempotencyKey string
	Lines          []Line
	// Span is the span of the request. It is stored with the order, so that traces of what is done with the order later
	// can link to it. nil: the request is not traced.
	Span []byte
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

// openLine is a line of an order that its customer can still pay.
type openLine struct {
	OrderID   uuid.UUID
	ProductID uuid.UUID
	Quantity  int64
}

// whyNotPlaced returns the reason why a placement cannot be accepted, with a field error for every wrong line, or nil
// if it can. products has what is left of the products of the lines. open has the lines of the customer's open orders.
func whyNotPlaced(p Placement, products map[uuid.UUID]Product, open []openLine, cfg Config) *rest.Error {
	return cmp.Or(unknownProducts(p, products), mixedCurrencies(p, products), notChargeable(p, products, cfg),
		outOfStock(p, products, open), tooManyOpen(p, products, open, cfg))
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
	first := products[p.Lines[0].ProductID].Currency
	if !slices.ContainsFunc(p.Lines, func(line Line) bool { return products[line.ProductID].Currency != first }) {
		return nil
	}
	detail := "All products of an order must have one currency: place an order for each currency."
	return rejectLines(MixedCurrencies, detail, p, "product_id", func(line Line) string {
		return "is priced in " + products[line.ProductID].Currency
	})
}

// notChargeable checks the total, if the service is connected with a package that charges it.
func notChargeable(p Placement, products map[uuid.UUID]Product, cfg Config) *rest.Error {
	if cfg.NotChargeable == nil {
		return nil
	}
	var total int64
	for _, line := range p.Lines {
		total += products[line.ProductID].PriceCents * line.Quantity
	}
	return cfg.NotChargeable(total, products[p.Lines[0].ProductID].Currency)
}

// outOfStock checks the stock. If the customer's open orders reserve units of a product of which too little is left,
// the error has the ids of these orders, because the customer can cancel one of them.
func outOfStock(p Placement, products map[uuid.UUID]Product, open []openLine) *rest.Error {
	own := unitsOf(open)
	var short []uuid.UUID // products
	rejection := rejectLines(OutOfStock, "There is not enough stock.", p, "quantity", func(line Line) string {
		product := products[line.ProductID]
		if line.Quantity <= product.Available {
			return ""
		}
		short = append(short, line.ProductID)
		detail := fmt.Sprintf("%s: %d wanted, %d available", product.Name, line.Quantity, product.Available)
		if n := own[line.ProductID]; n > 0 {
			detail += fmt.Sprintf(", %d in your open orders", n)
		}
		return detail
	})
	orders := ordersOf(open, short)
	if rejection == nil || len(orders) == 0 {
		return rejection
	}
	rejection.Detail = "There is not enough stock, and your own open orders hold some of it. " +
		"It does not help to pay them, but if you cancel one, its units are available again."
	return withOpenOrders(rejection, orders)
}

// tooManyOpen checks the bounds of what a customer can order without paying it. The error has the ids of all open
// orders, or, if the bound of the units is exceeded, the ids of the open orders that have such a product.
func tooManyOpen(p Placement, products map[uuid.UUID]Product, open []openLine, cfg Config) *rest.Error {
	if cfg.MaxOpenOrders == 0 && cfg.MaxOpenUnits == 0 {
		return nil
	}
	if orders := ordersOf(open, nil); cfg.MaxOpenOrders > 0 && int64(len(orders)) >= cfg.MaxOpenOrders {
		rejection := TooManyOpen.Errorf("You have %d orders that are not paid, and can have at most %d: "+
			"pay or cancel one of them.", len(orders), cfg.MaxOpenOrders)
		return withOpenOrders(rejection, orders)
	}
	units := unitsOf(open)
	var tooMany []uuid.UUID // products
	detail := "You would hold too many units of a product in orders that are not paid."
	rejection := rejectLines(TooManyOpen, detail, p, "quantity", func(line Line) string {
		if cfg.MaxOpenUnits == 0 || units[line.ProductID]+line.Quantity <= cfg.MaxOpenUnits {
			return ""
		}
		tooMany = append(tooMany, line.ProductID)
		return fmt.Sprintf("%s: %d wanted, %d in your open orders, at most %d of both together",
			products[line.ProductID].Name, line.Quantity, units[line.ProductID], cfg.MaxOpenUnits)
	})
	if rejection == nil {
		return nil
	}
	return withOpenOrders(rejection, ordersOf(open, tooMany))
}

// unitsOf returns the units of the lines by product.
func unitsOf(lines []openLine) map[uuid.UUID]int64 {
	units := make(map[uuid.UUID]int64)
	for _, line := range lines {
		units[line.ProductID] += line.Quantity
	}
	return units
}

// ordersOf returns the ids of the orders that the lines belong to, each once: the lines of an order follow each other. If
// products is not nil, it returns only those with one of the products.
func ordersOf(lines []openLine, products []uuid.UUID) []uuid.UUID {
	ids := []uuid.UUID{}
	for _, line := range lines {
		if (len(ids) == 0 || ids[len(ids)-1] != line.OrderID) &&
			(products == nil || slices.Contains(products, line.ProductID)) {
			ids = append(ids, line.OrderID)
		}
	}
	return ids
}

func withOpenOrders(rejection *rest.Error, ids []uuid.UUID) *rest.Error {
	rejection.Extensions = map[string]any{"open_orders": ids}
	return rejection
}

// rejectLines returns an error of the class, with a field error for each line for which check returns a detail. It
// returns nil if check returns "" for all lines.
func rejectLines(class rest.Class, detail string, p Placement, field string, check func(Line) string) *rest.Error {
	var errs []rest.FieldError
	for i, line := range p.Lines {
		if detail := check(line); detail != "" {
			errs = append(errs, rest.FieldError{Pointer: pointer(i, field), Detail: detail})
		}
	}
	if len(errs) == 0 {
		return nil
	}
	return &rest.Error{Class: class, Detail: detail, Fields: errs}
}
