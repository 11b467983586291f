package order_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// TestModel applies the same random steps to a shop and to a model of it, and compares the two. The model decides the
// placements of a batch one after the other, and changes its orders by the rules that TestRules checks.
func TestModel(t *testing.T) {
	t.Parallel()
	for _, b := range []bounds{{0, 0}, {2, 0}, {0, 3}, {3, 4}} {
		t.Run(fmt.Sprintf("%d orders, %d units", b.orders, b.units), func(t *testing.T) {
			t.Parallel()
			s := newShop(t, b.set)
			rapid.Check(t, func(rt *rapid.T) { newModel(t, rt, s, b).run(rt) })
			s.CheckInvariants(t, 24*time.Hour)
		})
	}
}

func (m *model) run(rt *rapid.T) {
	rt.Repeat(map[string]func(*rapid.T){
		"place":      m.place,
		"place more": m.place, // twice as often as the others
		"pay":        func(rt *rapid.T) { m.change(rt, (*order.Order).Pay, m.shop.Pay) },
		"cancel":     func(rt *rapid.T) { m.change(rt, (*order.Order).Cancel, m.shop.Cancel) },
		"extend":     func(rt *rapid.T) { m.change(rt, extend, m.shop.Extend) },
		"reschedule": m.reschedule,
		"hold":       func(rt *rapid.T) { m.changeElsewhere(rt, hold) },
		"release":    func(rt *rapid.T) { m.changeElsewhere(rt, release) },
		"pay held":   func(rt *rapid.T) { m.changeElsewhere(rt, payHeld) },
		"expire":     func(rt *rapid.T) { m.passTo(rt, func(o *order.Order) time.Time { return o.ExpiresAt }) },
		"end hold":   func(rt *rapid.T) { m.passTo(rt, func(o *order.Order) time.Time { return o.DueAt }) },
		"time out":   m.timeOut,
		"book":       m.book,
		"":           m.check,
	})
}

// bounds are the bounds of what a customer can order without paying it.
type bounds struct{ orders, units int64 }

func (b bounds) set(cfg *order.Config) { cfg.MaxOpenOrders, cfg.MaxOpenUnits = b.orders, b.units }

// model is the expected state of a shop.
type model struct {
	t         *testing.T
	shop      *shop
	bounds    bounds
	customers []uuid.UUID
	products  []uuid.UUID // the last one does not exist
	left      map[uuid.UUID]order.Product
	orders    []*order.Order // in the order of their placement
	keys      map[customerKey]*order.Order
}

type customerKey struct {
	customer uuid.UUID
	key      string
}

func newModel(t *testing.T, rt *rapid.T, s *shop, b bounds) *model {
	m := &model{
		t: t, shop: s, bounds: b, customers: []uuid.UUID{s.Customer(t), s.Customer(t), s.Customer(t)},
		left: map[uuid.UUID]order.Product{}, keys: map[customerKey]*order.Order{},
	}
	for _, currency := range []string{"EUR", "EUR", "EUR", "USD"} {
		supply := rapid.Int64Range(0, 8).Draw(rt, "supply")
		id := s.ProductWithCurrency(t, supply, currency)
		m.products = append(m.products, id)
		m.left[id] = order.Product{ID: id, Currency: currency, Available: supply}
	}
	m.products = append(m.products, uuid.Max)
	return m
}

// place places a batch of orders.
func (m *model) place(rt *rapid.T) {
	requests := rapid.SliceOfN(rapid.Custom(m.drawRequest), 1, 12).Draw(rt, "batch")
	var want []decision
	for _, r := range requests { // in order of arrival
		want = append(want, m.decide(r))
	}
	results := m.shop.placeInOneBatch(m.t, requests...)
	for i, got := range results {
		if o := want[i].order; o != nil && !want[i].replayed && got.order != nil {
			o.ID, o.CreatedAt = got.order.ID, got.order.CreatedAt
			o.ExpiresAt, o.DueAt = o.CreatedAt.Add(timeout), o.CreatedAt.Add(timeout)
		}
	}
	for i, got := range results {
		if got.text() != want[i].text() {
			rt.Fatalf("placement %d of the batch %q returns %s, %v; want %s", i, requests, got.text(), got.err,
				want[i].text())
		}
	}
	if n := testenv.Query[int](m.t, m.shop.DB, `SELECT count(*) FROM orders WHERE customer_id = ANY ($1)
		AND NOT EXISTS (SELECT FROM outbox WHERE task_id = orders.id::text)`, m.customers); n > 0 {
		rt.Fatalf("%d orders have no outbox row", n)
	}
}

func (m *model) drawRequest(rt *rapid.T) request {
	r := request{customer: rapid.SampledFrom(m.customers).Draw(rt, "customer")}
	r.IdempotencyKey = rapid.SampledFrom([]string{"", "", "", "a", "b"}).Draw(rt, "key")
	known := m.products[:len(m.products)-1]
	products := rapid.SampledFrom([][]uuid.UUID{known, known, known, known, m.products}).Draw(rt, "known")
	most := rapid.SampledFrom([]int{1, 1, 2, 3}).Draw(rt, "lines")
	for _, id := range rapid.SliceOfNDistinct(rapid.SampledFrom(products), 1, most, rapid.ID).Draw(rt, "products") {
		r.Lines = append(r.Lines, line(id, rapid.Int64Range(1, 4).Draw(rt, "quantity")))
	}
	return r
}

// decision is the expected answer to a placement.
type decision struct {
	order    *order.Order // placed or replayed; nil: the placement is rejected
	replayed bool
	class    rest.Class
	fields   []string       // pointers
	open     []*order.Order // that the rejection names
}

// text describes a decision as [result.text] describes an answer.
func (d decision) text() string {
	if d.order != nil {
		return fmt.Sprintf("order %s, replayed %v", d.order.ID, d.replayed)
	}
	open := []uuid.UUID{}
	for _, o := range newestFirst(d.open) {
		open = append(open, o.ID)
	}
	return fmt.Sprintf("%s at %v with the open orders %v", d.class.Code, d.fields, open)
}

func (r result) text() string {
	if r.err == nil {
		return fmt.Sprintf("order %s, replayed %v", r.order.ID, r.replayed)
	}
	rejection := rest.AsError(r.err)
	var fields []string
	for _, f := range rejection.Fields {
		fields = append(fields, f.Pointer)
	}
	open, _ := rejection.Extensions["open_orders"].([]uuid.UUID)
	return fmt.Sprintf("%s at %v with the open orders %v", rejection.Class.Code, fields, open)
}

// decide decides a placement, and places its order in the model if it is accepted.
func (m *model) decide(r request) decision {
	key := customerKey{r.customer, r.IdempotencyKey}
	if before := m.keys[key]; before != nil {
		if !slices.Equal(before.Items, m.items(r)) {
			return decision{class: rest.KeyReused}
		}
		return decision{order: before, replayed: true}
	}
	if rejection := m.rejection(r); rejection.class != (rest.Class{}) {
		return rejection
	}
	o := &order.Order{CustomerID: r.customer, Status: order.Pending, Items: m.items(r)}
	for _, item := range o.Items {
		o.TotalCents += item.Quantity * item.UnitPriceCents
		o.Currency = m.left[item.ProductID].Currency
	}
	m.orders = append(m.orders, o)
	m.adjustStock(o, -1)
	if r.IdempotencyKey != "" {
		m.keys[key] = o
	}
	return decision{order: o}
}

// items returns the items of the order that a request places.
func (m *model) items(r request) (items []order.Item) {
	for _, l := range r.Lines {
		name := "product " + l.ProductID.String()[:4]
		items = append(items, order.Item{ProductID: l.ProductID, Name: name, Quantity: l.Quantity, UnitPriceCents: 100})
	}
	slices.SortFunc(items, func(a, b order.Item) int { return bytes.Compare(a.ProductID[:], b.ProductID[:]) })
	return items
}

// rejection returns the reason why a placement is rejected, with the zero class if it is not.
func (m *model) rejection(r request) decision {
	open := m.open(r.customer)
	currency := m.left[r.Lines[0].ProductID].Currency
	unknown := r.products(func(l order.Line) bool { return m.left[l.ProductID].Currency == "" })
	mixed := r.products(func(l order.Line) bool { return m.left[l.ProductID].Currency != currency })
	short := r.products(func(l order.Line) bool { return l.Quantity > m.left[l.ProductID].Available })
	many := r.products(func(l order.Line) bool {
		return m.bounds.units > 0 && l.Quantity+unitsOf(open, l.ProductID) > m.bounds.units
	})
	switch {
	case unknown != nil:
		return decision{class: order.UnknownProduct, fields: r.pointers("product_id", unknown)}
	case mixed != nil:
		all := r.products(func(order.Line) bool { return true })
		return decision{class: order.MixedCurrencies, fields: r.pointers("product_id", all)}
	case short != nil:
		return decision{class: order.OutOfStock, fields: r.pointers("quantity", short), open: holding(open, short)}
	case m.bounds.orders > 0 && int64(len(open)) >= m.bounds.orders:
		return decision{class: order.TooManyOpen, open: open}
	case many != nil:
		return decision{class: order.TooManyOpen, fields: r.pointers("quantity", many), open: holding(open, many)}
	}
	return decision{}
}

// products returns the products of the lines that are wrong.
func (r request) products(wrong func(order.Line) bool) (products []uuid.UUID) {
	for _, l := range r.Lines {
		if wrong(l) {
			products = append(products, l.ProductID)
		}
	}
	return products
}

// pointers returns the pointers to a field of the lines with some products.
func (r request) pointers(field string, products []uuid.UUID) (pointers []string) {
	for i, l := range r.Lines {
		if slices.Contains(products, l.ProductID) {
			pointers = append(pointers, fmt.Sprintf("/items/%d/%s", i, field))
		}
	}
	return pointers
}

// holding returns those of the orders that have one of the products.
func holding(orders []*order.Order, products []uuid.UUID) (holding []*order.Order) {
	for _, o := range orders {
		if slices.ContainsFunc(o.Items, func(i order.Item) bool { return slices.Contains(products, i.ProductID) }) {
			holding = append(holding, o)
		}
	}
	return holding
}

func unitsOf(orders []*order.Order, product uuid.UUID) (units int64) {
	for _, o := range orders {
		for _, item := range o.Items {
			if item.ProductID == product {
				units += item.Quantity
			}
		}
	}
	return units
}

// open returns the open orders of a customer. Those of the present batch have no times yet.
func (m *model) open(customer uuid.UUID) (open []*order.Order) {
	for _, o := range m.orders {
		if o.CustomerID == customer && o.Status == order.Pending && (o.DueAt.IsZero() || time.Now().Before(o.DueAt)) {
			open = append(open, o)
		}
	}
	return open
}

func newestFirst(orders []*order.Order) []*order.Order {
	return slices.SortedFunc(slices.Values(orders), func(a, b *order.Order) int {
		if c := b.CreatedAt.Compare(a.CreatedAt); c != 0 {
			return c
		}
		return bytes.Compare(b.ID[:], a.ID[:])
	})
}

// adjustStock reserves the stock of an order (sign -1) or returns it (sign 1).
func (m *model) adjustStock(o *order.Order, sign int64) {
	for _, item := range o.Items {
		product := m.left[item.ProductID]
		product.Available += sign * item.Quantity
		m.left[item.ProductID] = product
	}
}

// change changes an order of the model by a rule, and that of the shop by a call of the service.
func (m *model) change(
	rt *rapid.T, rule func(*order.Order) error,
	call func(ctx context.Context, customer, id uuid.UUID) (*order.Order, error),
) {
	if len(m.orders) == 0 {
		return
	}
	o := rapid.SampledFrom(m.orders).Draw(rt, "order")
	before := *o
	o.ServerTime = time.Now()
	want := rule(o)
	order.TakeEvents(o)
	if before.Status == order.Pending && o.Status == order.Cancelled {
		m.adjustStock(o, 1)
	}
	got, err := call(m.t.Context(), o.CustomerID, o.ID)
	if parttest.ClassOf(err) != parttest.ClassOf(want) {
		rt.Fatalf("the change of the order\n%s to\n%s returns %v, want %v", seen(&before), seen(o), err, want)
	}
	if got != nil {
		m.compare(rt, got, o)
	}
}

// changeElsewhere changes an order in a transaction of another package.
func (m *model) changeElsewhere(rt *rapid.T, rule func(*order.Order) error) {
	m.change(rt, rule, func(_ context.Context, _, id uuid.UUID) (*order.Order, error) {
		return nil, m.shop.Change(m.t, id, rule)
	})
}

func extend(o *order.Order) error { return o.Extend(extension, ordertest.MaxExtensions) }

// hold holds an order until long after its deadline, so that the deadline can pass before the hold ends.
func hold(o *order.Order) error { return o.Hold(o.ExpiresAt.Add(10 * time.Hour)) }

func release(o *order.Order) error {
	o.Release(order.Provider)
	return nil
}

func payHeld(o *order.Order) error {
	o.PayHeld()
	return nil
}

// reschedule moves the deadline of an order as an operator does, to an earlier or a later time.
func (m *model) reschedule(rt *rapid.T) {
	left := rapid.SampledFrom([]time.Duration{5 * time.Minute, 30 * time.Minute, 24 * time.Hour}).Draw(rt, "deadline")
	deadline := time.Now().Add(left)
	rule := func(o *order.Order) error { return o.Reschedule(deadline, "a test") }
	m.change(rt, rule, func(ctx context.Context, _, id uuid.UUID) (*order.Order, error) {
		return m.shop.Reschedule(ctx, id, deadline, "a test")
	})
}

// passTo lets time pass for a pending order, until a second after one of its times.
func (m *model) passTo(rt *rapid.T, at func(*order.Order) time.Time) {
	if len(m.orders) == 0 {
		return
	}
	o := rapid.SampledFrom(m.orders).Draw(rt, "order")
	by := (time.Until(at(o)) + time.Second).Round(time.Microsecond)
	if o.Status != order.Pending || by < 0 {
		return
	}
	o.CreatedAt, o.ExpiresAt, o.DueAt = o.CreatedAt.Add(-by), o.ExpiresAt.Add(-by), o.DueAt.Add(-by)
	if o.HoldUntil != nil {
		o.HoldUntil = new(o.HoldUntil.Add(-by))
	}
	m.shop.Pass(m.t, o.ID, by)
}

func (m *model) timeOut(rt *rapid.T) {
	if len(m.orders) == 0 {
		return
	}
	var ids []uuid.UUID
	for _, o := range rapid.SliceOfN(rapid.SampledFrom(m.orders), 1, 5).Draw(rt, "orders") { // with duplicates
		ids = append(ids, o.ID)
		if o.Status == order.Pending && !time.Now().Before(o.DueAt) {
			o.Status, o.CancelReason, o.EndedBy = order.Cancelled, order.ByTimeout, order.Worker
			m.adjustStock(o, 1)
		}
	}
	m.shop.Deliver(m.t, ids...)
}

// book books all ended orders. It changes nothing that customers see.
func (m *model) book(rt *rapid.T) {
	if _, err := m.shop.Store.Book(m.t.Context()); err != nil {
		rt.Fatal(err)
	}
	if n := testenv.Query[int](m.t, m.shop.DB,
		`SELECT count(*) FROM orders WHERE NOT booked AND status <> 'pending'`); n > 0 {
		rt.Fatalf("%d ended orders are not booked", n)
	}
}

// check compares the stock and the orders of the shop with the model.
func (m *model) check(rt *rapid.T) {
	for id, want := range m.left {
		if got := m.shop.Available(m.t, id); got != want.Available {
			rt.Fatalf("product %s: %d available, want %d", id, got, want.Available)
		}
	}
	for _, customer := range m.customers {
		want := newestFirst(slices.DeleteFunc(slices.Clone(m.orders),
			func(o *order.Order) bool { return o.CustomerID != customer }))
		got, _, err := m.shop.List(m.t.Context(), customer, nil, 1000)
		if err != nil || len(got) != len(want) {
			rt.Fatalf("customer %s has %d orders, error %v; want %d", customer, len(got), err, len(want))
		}
		for i := range want {
			m.compare(rt, &got[i], want[i])
		}
	}
}

// compare compares an order that the shop returns, and what it offers to its customer, with that of the model.
func (m *model) compare(rt *rapid.T, got, want *order.Order) {
	paid, extended := *want, *want
	paid.ServerTime, extended.ServerTime = time.Now(), time.Now()
	payable := want.Status == order.Pending && paid.Pay() == nil
	extendable := extend(&extended) == nil
	if seen(got) != seen(want) || got.PayAtOnce != payable || got.ExtensionSeconds > 0 != extendable {
		rt.Fatalf("the order is\n%s, payable %v, %v seconds extendable; want\n%s, payable %v, extendable %v", seen(got),
			got.PayAtOnce, got.ExtensionSeconds, seen(want), payable, extendable)
	}
}

// seen describes what a test compares of an order: all but when it was read, paid or cancelled.
func seen(o *order.Order) string {
	hold := "not held"
	if o.HoldUntil != nil {
		hold = fmt.Sprint("held until ", o.HoldUntil.UTC())
	}
	return fmt.Sprintf("%s of %s, %s %s by %q, %d %s for %v, created %v, deadline %v, due %v, %s, extended %d", o.ID,
		o.CustomerID, o.Status, o.CancelReason, o.EndedBy, o.TotalCents, o.Currency, o.Items, o.CreatedAt.UTC(),
		o.ExpiresAt.UTC(), o.DueAt.UTC(), hold, o.Extensions)
}
