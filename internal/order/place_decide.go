package order

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/rest"
)

// placeResult is a row of place.sql.
type placeResult struct {
	N          int // the number of the placement in the batch, from 1
	Placed     bool
	TotalCents *int64 // nil, like Currency, CreatedAt and ExpiresAt, if the statement placed no order
	Currency   *string
	CreatedAt  *time.Time
	ExpiresAt  *time.Time
	ExistingID *uuid.UUID // see placing.existing
	ServerTime time.Time
	OpenLines  []openLine // of the customer's open orders, the newest first; nil if the order is placed now or exists
}

// openLine is a line of an order that its customer has not paid yet.
type openLine struct {
	OrderID   uuid.UUID `json:"order_id"`
	ProductID uuid.UUID `json:"product_id"`
	Quantity  int64     `json:"quantity"`
}

// decide decides the placements of a batch by the results of place.sql. A placement stays undecided if place.sql left
// it out only because of an earlier placement, which is rejected.
func decide(batch []*placing, products map[uuid.UUID]Product, results []placeResult, cfg Config) {
	open := make(map[uuid.UUID][]openLine) // by customer: the lines of the orders placed now, the newest first
	for i, p := range batch {
		r := results[i]
		p.existing = r.ExistingID
		if !r.Placed {
			continue
		}
		p.order = r.order(p, products)
		// At measures the time left from its call, so call it before the next round, which may wait for locks.
		p.task = delay.At(p.id.String(), p.order.DueAt, p.order.ServerTime)
		for _, line := range p.Lines {
			product := products[line.ProductID]
			product.Available -= line.Quantity
			products[line.ProductID] = product
			open[p.customer] = slices.Insert(open[p.customer], 0, openLine{p.id, line.ProductID, line.Quantity})
		}
	}
	// Now products and open tell what is left after all accepted placements, also the later ones. place.sql accepts a
	// later placement only if enough is left for the earlier ones too. So if too little is left for a placement now,
	// too little was left at its turn. If enough is left, the placement stays undecided, and the caller repeats the
	// transaction with it.
	for i, p := range batch {
		if !p.isDecided() {
			lines := slices.Concat(open[p.customer], results[i].OpenLines)
			p.rejection = whyNotPlaced(p.Placement, products, lines, cfg)
		}
	}
}

// order returns the order of a placement that place.sql has accepted.
func (r placeResult) order(p *placing, products map[uuid.UUID]Product) *Order {
	o := &Order{
		ID: p.id, CustomerID: p.customer, Status: Pending, TotalCents: *r.TotalCents, Currency: *r.Currency,
		CreatedAt: *r.CreatedAt, ExpiresAt: *r.ExpiresAt, DueAt: *r.ExpiresAt, ServerTime: r.ServerTime,
		Items: make([]Item, len(p.Lines)),
	}
	for i, line := range p.Lines {
		product := products[line.ProductID]
		o.Items[i] = Item{line.ProductID, product.Name, line.Quantity, product.PriceCents}
	}
	slices.SortFunc(o.Items, func(a, b Item) int { return bytes.Compare(a.ProductID[:], b.ProductID[:]) })
	return o
}

// whyNotPlaced returns the reason why a placement cannot be accepted, with a field error for every wrong line, or nil
// if it can. products has the existing products of the lines. open has the lines of the customer's open orders.
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

// ordersOf returns the ids of the orders that the lines belong to, each once. If products is not nil, it returns only
// those with one of the products.
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
