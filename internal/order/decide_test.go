package order

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/rest"
)

// decisions is the table of what is decided about the placements of a batch. Each placement has the form
// "customer/key: lines = decision", and the order that it places is named by its number: #1 for the first one. After a
// rejection stand the lines with field errors, counted from 0, and the open orders that it names.
//
// The products A, B and C cost euros, and D dollars. A product of which nothing is said does not exist.
var decisions = map[string]struct {
	left   string   // of each product
	locked string   // a product that another session has locked
	lost   string   // an order of the batch that a lost transaction has placed
	keys   []string // the orders with idempotency keys, which are not open any more
	open   []string // the open orders, the newest first: they are due a microsecond after the decision
	due    []string // the pending orders that are due at the time of the decision
	bounds Bounds
	batch  []string
}{
	"a smaller order fits after a rejected one": {
		left:  "5 A",
		batch: []string{"ann: 2 A = placed", "bob: 2 A = placed", "cid: 2 A = out-of-stock 0", "dan: 1 A = placed"},
	},
	"a large order before all others": {
		left:  "5 A",
		batch: []string{"ann: 6 A = out-of-stock 0", "bob: 5 A = placed", "cid: 1 A = out-of-stock 0"},
	},
	"a rejected order takes nothing of its other products": {
		left: "1 A, 3 B",
		batch: []string{
			"ann: 2 A, 3 B = out-of-stock 0", "bob: 2 B = placed", "cid: 1 A, 2 B = out-of-stock 1",
			"dan: 1 A, 1 B = placed",
		},
	},
	"an order with two currencies takes nothing": {
		left:  "1 A, 1 D",
		batch: []string{"ann: 1 A, 1 D = mixed-currencies 0 1", "bob: 1 A = placed", "cid: 1 D = placed"},
	},
	"an unknown product": {
		left: "1 A",
		batch: []string{
			"ann: 1 U, 1 A, 1 V = unknown-product 0 2", "bob: 1 U = unknown-product 0", "cid: 1 A = placed",
		},
	},
	"reasons have an order": {
		left:   "9 A, 1 B, 9 D",
		open:   []string{"ann: 1 A = x"},
		bounds: Bounds{MaxOpenOrders: 1, MaxOpenUnits: 5},
		batch: []string{
			"ann: 1 U, 6 D, 2 B = unknown-product 0", "ann: 6 D, 2 B = mixed-currencies 0 1",
			"ann: 7 A, 6 B = out-of-stock 1", "ann: 6 A = too-many-open-orders open x",
			"bob: 6 A = too-many-open-orders 0 open",
		},
	},

	"a key is used again with the same lines": {
		left: "5 A, 5 B",
		keys: []string{"ann/k: 2 A, 5 B = x"},
		batch: []string{
			"ann/k: 5 B, 2 A = is x", "ann/k: 2 A = idempotency-key-reused", "ann/k: 1 U = idempotency-key-reused",
			"bob/k: 5 B = placed", "ann/l: 5 A = placed",
		},
	},
	"a key is used again in its batch": {
		left: "5 A",
		batch: []string{
			"ann/k: 2 A = placed", "bob/k: 2 A = placed", "ann/k: 2 A = is #1", "ann/k: 1 A = idempotency-key-reused",
			"ann: 1 A = placed", "ann: 1 A = out-of-stock 0 open #5 #1",
		},
	},
	"a key belongs to no rejected placement": {
		left:  "5 A",
		batch: []string{"ann/k: 6 A = out-of-stock 0", "ann/k: 2 A = placed", "ann/k: 2 A = is #2"},
	},
	"a locked product": {
		left:   "2 A, 1 B",
		locked: "C",
		keys:   []string{"ann/k: 1 C = x"},
		batch: []string{
			"ann: 1 A, 1 C = waits", "bob: 2 A = placed", "ann/k: 1 C = is x", "ann/k: 1 A = idempotency-key-reused",
			"cid: 9 C, 9 B, 1 U = waits", "cid: 1 B = placed",
		},
	},
	"a lost transaction has placed an order": {
		left:  "1 A",
		lost:  "#1",
		batch: []string{"ann: 1 A = is #1", "bob: 1 A = placed"},
	},

	"the bound of orders": {
		left:   "9 A, 9 B",
		open:   []string{"bob: 1 A = z", "ann: 1 A, 1 B = y", "bob: 1 A = w", "bob: 1 A = v"},
		due:    []string{"ann: 1 A = x"},
		bounds: Bounds{MaxOpenOrders: 3},
		batch: []string{
			"ann: 4 A, 1 B = placed", "bob: 1 A = too-many-open-orders open z w v", "ann: 1 B = placed",
			"ann: 1 A = too-many-open-orders open #3 #1 y",
		},
	},
	"the bound of units": {
		left:   "99 A, 99 B",
		open:   []string{"ann: 2 A = y", "ann: 3 B = x", "ann: 1 A, 1 B = w"},
		due:    []string{"ann: 5 A = v"},
		bounds: Bounds{MaxOpenUnits: 5},
		batch: []string{
			"ann: 1 B, 3 A = too-many-open-orders 1 open y w", "ann: 2 B, 3 A = too-many-open-orders 0 1 open y x w",
			"ann: 1 B, 2 A = placed", "ann: 1 A = too-many-open-orders 0 open #3 y w", "bob: 5 A, 5 B = placed",
			"cid: 6 A = too-many-open-orders 0 open",
		},
	},
	"the customer's own orders hold the stock": {
		left: "3 A, 9 B",
		open: []string{"ann: 1 B = y", "bob: 1 A = x", "ann: 2 B, 2 A = w"},
		due:  []string{"ann: 5 A = v"},
		batch: []string{
			"ann: 4 A = out-of-stock 0 open w", "ann: 1 A = placed", "bob: 1 A = placed",
			"ann: 1 B, 2 A = out-of-stock 1 open #2 w",
			"cid: 2 A = out-of-stock 0", "cid: 1 A = placed",
		},
	},
}

// id returns an id with a name.
func id(name string) (id uuid.UUID) {
	copy(id[:], name)
	return id
}

// nameOf returns the name of an id.
func nameOf(id uuid.UUID) string { return strings.TrimRight(string(id[:]), "\x00") }

// parse returns the parts of a text "customer/key: lines = what".
func parse(text string) (p *placing, what string) {
	who, rest, _ := strings.Cut(text, ": ")
	customer, key, _ := strings.Cut(who, "/")
	lines, what, _ := strings.Cut(rest, " = ")
	return &placing{customer: id(customer), Placement: Placement{IdempotencyKey: key, Lines: parseLines(lines)}}, what
}

// parseLines returns the lines of a text "2 A, 1 B".
func parseLines(text string) (lines []Line) {
	for wanted := range strings.SplitSeq(text, ", ") {
		var quantity int64
		var product string
		fmt.Sscanf(wanted, "%d %s", &quantity, &product)
		lines = append(lines, Line{id(product), quantity})
	}
	return lines
}

// decided returns the decision about a placement, in the form of the table.
func decided(p *placing) string {
	switch {
	case p.locked:
		return "waits"
	case p.existing != uuid.Nil:
		return "is " + nameOf(p.existing)
	case p.order != nil:
		return "placed"
	}
	text := p.rejection.Class.Code
	for _, field := range p.rejection.Fields {
		text += " " + strings.Split(field.Pointer, "/")[2] // of /items/0/quantity
	}
	if open, named := p.rejection.Extensions["open_orders"].([]uuid.UUID); named {
		text += " open"
		for _, order := range open {
			text += " " + nameOf(order)
		}
	}
	return text
}

// decidedAt is the time of the decisions.
var decidedAt = time.Date(2026, 1, 31, 9, 0, 0, 0, time.UTC)

// newNeeds returns what a transaction has read of some products and of no order.
func newNeeds(left string) *needs {
	n := &needs{
		products: stock{}, locked: map[uuid.UUID]bool{}, existing: map[customerKey]existingOrder{},
		placed: map[uuid.UUID]bool{}, open: map[uuid.UUID][]pendingLine{}, now: decidedAt, read: time.Now(),
	}
	for _, line := range parseLines(left) {
		product := Product{ID: line.ProductID, Name: nameOf(line.ProductID), PriceCents: 100, Currency: "EUR"}
		if product.Name == "D" {
			product.Currency = "USD"
		}
		product.Available = line.Quantity
		n.products[product.ID] = product
	}
	return n
}

// addPending adds pending orders of the table, which are due at a time.
func (n *needs) addPending(orders []string, due time.Time) {
	for _, text := range orders {
		p, name := parse(text)
		for _, line := range p.Lines {
			pending := pendingLine{openLine{id(name), line.ProductID, line.Quantity}, due}
			n.open[p.customer] = append(n.open[p.customer], pending)
		}
	}
}

// TestDecide decides each batch of the table, twice, because a batch is decided again when more is known.
func TestDecide(t *testing.T) {
	t.Parallel()
	for name, test := range decisions {
		t.Run(name, func(t *testing.T) {
			n := newNeeds(test.left)
			n.locked[id(test.locked)] = true
			n.placed[id(test.lost)] = true
			for _, text := range test.keys {
				p, name := parse(text)
				n.existing[p.key()] = existingOrder{id(name), p.fingerprint()}
			}
			n.addPending(test.open, decidedAt.Add(time.Microsecond))
			n.addPending(test.due, decidedAt)
			var batch []*placing
			for i, text := range test.batch {
				p, _ := parse(text)
				p.id = id(fmt.Sprint("#", i+1))
				batch = append(batch, p)
			}
			for range 2 {
				accepted := n.decide(batch, Config{Options: Options{OrderTimeout: time.Hour, Bounds: test.bounds}})
				for i, p := range batch {
					if _, want := parse(test.batch[i]); decided(p) != want {
						t.Errorf("placement %d, %s: decided %q", i+1, test.batch[i], decided(p))
					}
					if slices.Contains(accepted, p) != (p.order != nil) {
						t.Errorf("placement %d, %s: it must be accepted if it is placed", i+1, test.batch[i])
					}
				}
			}
		})
	}
}

// TestPlacedOrder compares all fields of an order that is placed.
func TestPlacedOrder(t *testing.T) {
	t.Parallel()
	p, _ := parse("ann/k: 2 B, 3 A")
	p.id = id("#1")
	n := newNeeds("9 A, 9 B")
	n.products[id("B")] = Product{ID: id("B"), Name: "B", PriceCents: 250, Currency: "EUR", Available: 2}
	n.decide([]*placing{p}, Config{Options: Options{OrderTimeout: time.Minute + 1700*time.Nanosecond}})
	deadline := decidedAt.Add(time.Minute + time.Microsecond)
	want := &Order{
		ID: id("#1"), CustomerID: id("ann"), Status: Pending, TotalCents: 800, Currency: "EUR",
		Items:     []Item{{id("A"), "A", 3, 100}, {id("B"), "B", 2, 250}},
		CreatedAt: decidedAt, ExpiresAt: deadline, DueAt: deadline, ServerTime: decidedAt,
	}
	if !reflect.DeepEqual(p.order, want) {
		t.Errorf("the order is %+v, want %+v", p.order, want)
	}
	if left := p.task.Left(); p.task.ID != want.ID.String() || left <= 0 || left > time.Minute+time.Microsecond {
		t.Errorf("the task is %+v, due in %v, want that of the order, at most its time to pay", p.task, left)
	}
}

// TestRejectionsSayWhy compares the details that customers read when their placements are rejected.
func TestRejectionsSayWhy(t *testing.T) {
	t.Parallel()
	n := newNeeds("9 A, 2 B, 9 D")
	n.addPending([]string{"ann: 1 B, 4 A = x"}, decidedAt.Add(time.Hour))
	tooMuch := func(totalCents int64, currency string) *rest.Error {
		if totalCents <= 800 {
			return nil
		}
		return rest.Invalid.Errorf("%d cents of %s are too much", totalCents, currency)
	}
	for text, want := range map[string]string{
		"bob: 3 B":      "B: 3 wanted, 2 available",
		"ann: 1 A, 3 B": "B: 3 wanted, 2 available, 1 in your open orders",
		"ann: 2 A":      "A: 2 wanted, 4 in your open orders, at most 5 of both together",
		"ann: 1 A":      "",
		"bob: 1 A, 1 D": "is priced in EUR; is priced in USD",
		"bob: 9 D":      "900 cents of USD are too much",
		"bob: 1 C":      "there is no product " + id("C").String(),
	} {
		p, _ := parse(text)
		n.decide([]*placing{p}, Config{
			Options: Options{Bounds: Bounds{MaxOpenUnits: 5}}, NotChargeable: tooMuch,
		})
		var details []string
		if p.rejection != nil {
			for _, field := range p.rejection.Fields {
				details = append(details, field.Detail)
			}
			if len(details) == 0 {
				details = []string{p.rejection.Detail}
			}
			if helps := text == "ann: 1 A, 3 B"; strings.Contains(p.rejection.Detail, "cancel") != helps {
				t.Errorf("%s: the customer reads %q, want advice to cancel: %v", text, p.rejection.Detail, helps)
			}
		}
		if got := strings.Join(details, "; "); got != want {
			t.Errorf("%s: the customer reads %q, want %q", text, got, want)
		}
	}
}

// TestFieldErrors checks placements without a look at the products.
func TestFieldErrors(t *testing.T) {
	t.Parallel()
	var fifty []string
	for product := range 50 {
		fifty = append(fifty, fmt.Sprintf("1000 %d", product))
	}
	for text, want := range map[string]string{
		strings.Join(fifty, ", "):           "",
		strings.Join(fifty, ", ") + ", 1 A": "/items must be a list of 1 to 50 lines, has 51",
		"0 A, -1 B, 1001 C": "/items/0/quantity must be a whole number from 1 to 1000, " +
			"/items/1/quantity must be a whole number from 1 to 1000, " +
			"/items/2/quantity must be a whole number from 1 to 1000",
		"1 A, 1 B, 1 A": "/items/2/product_id is the same as /items/0/product_id: order a product in one line",
		"1":             "/items/0/product_id must be the UUID of a product",
	} {
		var got []string
		for _, e := range (Placement{Lines: parseLines(text)}).fieldErrors() {
			got = append(got, e.Pointer+" "+e.Detail)
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s: the errors are %q, want %q", text, got, want)
		}
	}
}
