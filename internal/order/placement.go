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

// stock is what is left of some products, by their ids.
type stock map[uuid.UUID]Product

// take takes the units of some lines out of the stock.
func (s stock) take(lines []Line) {
	for _, line := range lines {
		product := s[line.ProductID]
		product.Available -= line.Quantity
		s[line.ProductID] = product
	}
}

// openLine is a line of an order that its customer can still pay.
type openLine struct {
	OrderID   uuid.UUID
	ProductID uuid.UUID
	Quantity  int64
}

// openLines are the lines of a customer's open orders, the newest order first.
type openLines []openLine

// add returns the lines with those of an order that is newer than all others.
func (open openLines) add(order uuid.UUID, lines []Line) openLines {
	all := make(openLines, 0, len(lines)+len(open))
	for _, line := range lines {
		all = append(all, openLine{order, line.ProductID, line.Quantity})
	}
	return append(all, open...)
}

// units returns how many units of a product the orders hold.
func (open openLines) units(product uuid.UUID) (units int64) {
	for _, line := range open {
		if line.ProductID == product {
			units += line.Quantity
		}
	}
	return units
}

// with returns the lines of the products.
func (open openLines) with(products []uuid.UUID) (lines openLines) {
	for _, line := range open {
		if slices.Contains(products, line.ProductID) {
			lines = append(lines, line)
		}
	}
	return lines
}

// orders returns the ids of the orders, each once.
func (open openLines) orders() []uuid.UUID {
	ids := make([]uuid.UUID, len(open))
	for i, line := range open {
		ids[i] = line.OrderID
	}
	return slices.Compact(ids) // the lines of an order follow each other
}

// whyNotPlaced returns the reason why a placement cannot be accepted, with a field error for every wrong line, or nil
// if it can. open has the lines of the customer's open orders.
func whyNotPlaced(p Placement, left stock, open openLines, cfg Config) *rest.Error {
	if why := cmp.Or(unknownProducts(p, left), mixedCurrencies(p, left)); why != nil {
		return why
	}
	return cmp.Or(notChargeable(p, left, cfg), outOfStock(p, left, open), tooManyOpen(p, left, open, cfg))
}

func unknownProducts(p Placement, left stock) *rest.Error {
	return rejectLines(UnknownProduct, "Some of the products do not exist.", p, "product_id", func(line Line) string {
		if _, known := left[line.ProductID]; known {
			return ""
		}
		return fmt.Sprintf("there is no product %s", line.ProductID)
	})
}

func mixedCurrencies(p Placement, left stock) *rest.Error {
	first := left[p.Lines[0].ProductID].Currency
	if !slices.ContainsFunc(p.Lines, func(line Line) bool { return left[line.ProductID].Currency != first }) {
		return nil
	}
	detail := "All products of an order must have one currency: place an order for each currency."
	return rejectLines(MixedCurrencies, detail, p, "product_id", func(line Line) string {
		return "is priced in " + left[line.ProductID].Currency
	})
}

// notChargeable checks the total, if the service is connected with a package that charges it.
func notChargeable(p Placement, left stock, cfg Config) *rest.Error {
	if cfg.NotChargeable == nil {
		return nil
	}
	var total int64
	for _, line := range p.Lines {
		total += left[line.ProductID].PriceCents * line.Quantity
	}
	return cfg.NotChargeable(total, left[p.Lines[0].ProductID].Currency)
}

// outOfStock checks the stock. If the customer's open orders reserve units of a product of which too little is left,
// the error has the ids of these orders, because the customer can cancel one of them.
func outOfStock(p Placement, left stock, open openLines) *rest.Error {
	var short []uuid.UUID // products
	rejection := rejectLines(OutOfStock, "There is not enough stock.", p, "quantity", func(line Line) string {
		product := left[line.ProductID]
		if line.Quantity <= product.Available {
			return ""
		}
		short = append(short, line.ProductID)
		detail := fmt.Sprintf("%s: %d wanted, %d available", product.Name, line.Quantity, product.Available)
		if own := open.units(line.ProductID); own > 0 {
			detail += fmt.Sprintf(", %d in your open orders", own)
		}
		return detail
	})
	orders := open.with(short).orders()
	if rejection == nil || len(orders) == 0 {
		return rejection
	}
	rejection.Detail = "There is not enough stock, and your own open orders hold some of it. " +
		"It does not help to pay them, but if you cancel one, its units are available again."
	return withOpenOrders(rejection, orders)
}

// tooManyOpen checks the bounds of what a customer can order without paying it. The error has the ids of all open
// orders, or, if the bound of the units is exceeded, the ids of the open orders that have such a product.
func tooManyOpen(p Placement, left stock, open openLines, cfg Config) *rest.Error {
	if cfg.MaxOpenOrders == 0 && cfg.MaxOpenUnits == 0 {
		return nil
	}
	if orders := open.orders(); cfg.MaxOpenOrders > 0 && int64(len(orders)) >= cfg.MaxOpenOrders {
		rejection := TooManyOpen.Errorf("You have %d orders that are not paid, and can have at most %d: "+
			"pay or cancel one of them.", len(orders), cfg.MaxOpenOrders)
		return withOpenOrders(rejection, orders)
	}
	var tooMany []uuid.UUID // products
	detail := "You would hold too many units of a product in orders that are not paid."
	rejection := rejectLines(TooManyOpen, detail, p, "quantity", func(line Line) string {
		units := open.units(line.ProductID)
		if cfg.MaxOpenUnits == 0 || units+line.Quantity <= cfg.MaxOpenUnits {
			return ""
		}
		tooMany = append(tooMany, line.ProductID)
		return fmt.Sprintf("%s: %d wanted, %d in your open orders, at most %d of both together",
			left[line.ProductID].Name, line.Quantity, units, cfg.MaxOpenUnits)
	})
	if rejection == nil {
		return nil
	}
	return withOpenOrders(rejection, open.with(tooMany).orders())
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
