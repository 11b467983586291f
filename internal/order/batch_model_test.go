package order_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// TestBatchModel places random batches of orders in a shop, and one by one in a model of it, and compares the two.
// Between two batches, orders are paid, cancelled and timed out.
func TestBatchModel(t *testing.T) {
	url := testenv.Postgres(t)
	shops := map[bounds]*shop{}
	for _, b := range []bounds{{0, 0}, {2, 0}, {0, 3}, {3, 4}} {
		shops[b] = newShopAt(t, url, b.set)
	}
	rapid.Check(t, func(rt *rapid.T) {
		m := &batchModel{t: t, keys: map[customerKey]placement{}, products: map[uuid.UUID]*modelProduct{}}
		m.bounds = rapid.SampledFrom([]bounds{{0, 0}, {2, 0}, {0, 3}, {3, 4}}).Draw(rt, "bounds")
		m.shop = shops[m.bounds]
		for range 3 {
			m.customers = append(m.customers, m.shop.Customer(t))
		}
		for _, currency := range []string{"EUR", "EUR", "EUR", "USD"} {
			supply := rapid.Int64Range(0, 8).Draw(rt, "supply")
			product := m.shop.ProductWithCurrency(t, supply, currency)
			m.products[product] = &modelProduct{available: supply, currency: currency}
			m.known = append(m.known, product)
		}
		for range rapid.IntRange(1, 5).Draw(rt, "batches") {
			m.placeBatch(rt)
			m.endOrders(rt)
			m.check(rt)
		}
	})
	shops[bounds{}].CheckInvariants(t, 24*time.Hour)
}

// bounds are the bounds of what a customer can order without paying it.
type bounds struct{ orders, units int64 }

func (b bounds) set(cfg *order.Config) { cfg.MaxOpenOrders, cfg.MaxOpenUnits = b.orders, b.units }

// batchModel is the expected state of a shop.
type batchModel struct {
	t         *testing.T
	shop      *shop
	bounds    bounds
	customers []uuid.UUID
	products  map[uuid.UUID]*modelProduct
	known     []uuid.UUID // the products, in a fixed sequence
	orders    []*batchOrder
	before    int // the number of orders before the last batch
	keys      map[customerKey]placement
}

type modelProduct struct {
	available int64
	currency  string
}

type customerKey struct {
	customer uuid.UUID
	key      string
}

// batchOrder is an expected order. Its id and time are known after the batch.
type batchOrder struct {
	modelOrder
	customer  uuid.UUID
	createdAt time.Time
}

// isOpen reports whether the order counts towards the bounds of its customer.
func (o *batchOrder) isOpen() bool { return o.status == order.Pending && !o.expired }

// expected is the expected answer to a placement.
type expected struct {
	class  rest.Class  // of the rejection; the zero class: none
	order  *batchOrder // placed or replayed
	replay bool
	fields []string // the pointers of the field errors of a wrong product
}

func (m *batchModel) placeBatch(rt *rapid.T) {
	requests := rapid.SliceOfN(rapid.Custom(m.drawRequest), 1, 12).Draw(rt, "batch")
	want := make([]expected, len(requests))
	m.before = len(m.orders)
	for i, r := range requests { // in order of arrival
		want[i] = m.place(r)
	}
	results := m.shop.placeInOneBatch(m.t, requests...)
	for i, got := range results {
		if o := want[i].order; o != nil && !want[i].replay && got.order != nil {
			o.id, o.createdAt = got.order.ID, got.order.CreatedAt
		}
	}
	for i, got := range results {
		m.compare(rt, requests, i, got, want[i])
	}
}

func (m *batchModel) drawRequest(rt *rapid.T) request {
	r := request{customer: rapid.SampledFrom(m.customers).Draw(rt, "customer")}
	r.IdempotencyKey = rapid.SampledFrom([]string{"", "", "", "a", "b"}).Draw(rt, "key")
	products := m.known
	if rapid.IntRange(0, 9).Draw(rt, "unknown") == 0 {
		products = append(slices.Clone(products), uuid.Max)
	}
	most := rapid.SampledFrom([]int{1, 1, 2, 3}).Draw(rt, "lines")
	for _, product := range rapid.SliceOfNDistinct(rapid.SampledFrom(products), 1, most, rapid.ID).Draw(rt,
		"products") {
		r.Lines = append(r.Lines, line(product, rapid.Int64Range(1, 4).Draw(rt, "quantity")))
	}
	return r
}

// place places an order in the model, and returns the expected answer.
func (m *batchModel) place(r request) expected {
	key := customerKey{r.customer, r.IdempotencyKey}
	if before, found := m.keys[key]; found && r.IdempotencyKey != "" {
		if before.lines != canonical(r.Lines) {
			return expected{class: rest.KeyReused}
		}
		return expected{order: before.batch, replay: true}
	}
	if rejection := m.rejection(r); rejection.class != (rest.Class{}) {
		return rejection
	}
	o := &batchOrder{modelOrder: modelOrder{lines: r.Lines, status: order.Pending}, customer: r.customer}
	m.orders = append(m.orders, o)
	m.adjust(o, -1)
	if r.IdempotencyKey != "" {
		m.keys[key] = placement{batch: o, lines: canonical(r.Lines)}
	}
	return expected{order: o}
}

func (m *batchModel) adjust(o *batchOrder, sign int64) {
	for _, l := range o.lines {
		m.products[l.ProductID].available += sign * l.Quantity
	}
}

// rejection returns the reason why a placement is rejected, with the zero class if it is not.
func (m *batchModel) rejection(r request) expected {
	if f := r.pointers("product_id", func(l order.Line) bool { return m.products[l.ProductID] == nil }); f != nil {
		return expected{class: order.UnknownProduct, fields: f}
	}
	currency := m.products[r.Lines[0].ProductID].currency
	if slices.ContainsFunc(r.Lines, func(l order.Line) bool { return m.products[l.ProductID].currency != currency }) {
		return expected{class: order.MixedCurrencies,
			fields: r.pointers("product_id", func(order.Line) bool { return true })}
	}
	switch {
	case m.lacking(r) != nil:
		return expected{class: order.OutOfStock}
	case m.overBounds(r):
		return expected{class: order.TooManyOpen}
	default:
		return expected{}
	}
}

// pointers returns the pointers to a field of the lines that are wrong.
func (r request) pointers(field string, wrong func(order.Line) bool) (pointers []string) {
	for i, l := range r.Lines {
		if wrong(l) {
			pointers = append(pointers, fmt.Sprintf("/items/%d/%s", i, field))
		}
	}
	return pointers
}

// lacking returns the pointers to the lines for which there is not enough stock.
func (m *batchModel) lacking(r request) []string {
	return r.pointers("quantity", func(l order.Line) bool { return l.Quantity > m.products[l.ProductID].available })
}

// holding returns those of the orders that are open orders of the customer of a placement, and hold units of the
// products of its lines that the pointers name.
func (m *batchModel) holding(orders []*batchOrder, r request, pointers []string) (holding []*batchOrder) {
	for _, o := range orders {
		if o.customer != r.customer || !o.isOpen() {
			continue
		}
		named := r.pointers("quantity", func(l order.Line) bool { return unitsOf([]*batchOrder{o}, l.ProductID) > 0 })
		if slices.ContainsFunc(named, func(p string) bool { return slices.Contains(pointers, p) }) {
			holding = append(holding, o)
		}
	}
	return holding
}

// overBounds reports whether a placement would exceed the bounds of its customer.
func (m *batchModel) overBounds(r request) bool {
	open := m.open(r.customer)
	return m.bounds.orders > 0 && int64(len(open)) >= m.bounds.orders ||
		slices.ContainsFunc(r.Lines, func(l order.Line) bool {
			return m.bounds.units > 0 && l.Quantity+unitsOf(open, l.ProductID) > m.bounds.units
		})
}

// open returns the open orders of a customer.
func (m *batchModel) open(customer uuid.UUID) (open []*batchOrder) {
	for _, o := range m.orders {
		if o.customer == customer && o.isOpen() {
			open = append(open, o)
		}
	}
	return open
}

func unitsOf(orders []*batchOrder, product uuid.UUID) (units int64) {
	for _, o := range orders {
		for _, l := range o.lines {
			if l.ProductID == product {
				units += l.Quantity
			}
		}
	}
	return units
}

// newestFirst returns the ids of orders, the newest first.
func newestFirst(orders []*batchOrder) []uuid.UUID {
	orders = slices.Clone(orders)
	slices.SortFunc(orders, func(a, b *batchOrder) int {
		if c := b.createdAt.Compare(a.createdAt); c != 0 {
			return c
		}
		return slices.Compare(b.id[:], a.id[:])
	})
	ids := []uuid.UUID{}
	for _, o := range orders {
		ids = append(ids, o.id)
	}
	return ids
}

// compare compares the answer to a placement with the expected one. The reasons of a rejection must hold after the
// batch. They may differ from those at the turn of the placement, because later placements of the batch have taken
// stock, too.
func (m *batchModel) compare(rt *rapid.T, requests []request, i int, got result, want expected) {
	fail := func(format string, args ...any) {
		rt.Fatalf("placement %d of the batch %q: got %v, replayed %v, error %v: %s",
			i, requests, got.order, got.replayed, got.err, fmt.Sprintf(format, args...))
	}
	if got.err == nil {
		if want.order == nil || got.order.ID != want.order.id || got.replayed != want.replay {
			fail("want order %v, replayed %v, code %q", want.order, want.replay, want.class.Code)
		}
		return
	}
	class, customer := parttest.ClassOf(got.err), requests[i].customer
	var fields []string
	for _, f := range got.err.(*rest.Error).Fields {
		fields = append(fields, f.Pointer)
	}
	open, named := got.err.(*rest.Error).Extensions["open_orders"].([]uuid.UUID)
	all := newestFirst(m.open(customer))
	inSequence := slices.IsSortedFunc(open, func(a, b uuid.UUID) int {
		return slices.Index(all, a) - slices.Index(all, b)
	})
	late := want.class == order.OutOfStock || want.class == order.TooManyOpen
	switch {
	case want.order != nil:
		fail("want order %v", want.order)
	case class == order.OutOfStock && late:
		if lacking := m.lacking(requests[i]); len(fields) == 0 || !containsAll(lacking, fields) {
			fail("field errors are at %v, want some of %v", fields, lacking)
		}
		// An order of the same batch is named if it was placed in the transaction that rejects the placement, or
		// before.
		holding := newestFirst(m.holding(m.orders, requests[i], fields))
		before := newestFirst(m.holding(m.orders[:m.before], requests[i], fields))
		if named != (len(open) > 0) || !inSequence || !containsAll(holding, open) || !containsAll(open, before) {
			fail("the open orders are %v, want %v, and perhaps others of %v, the newest first", open, before, holding)
		}
	case class == order.TooManyOpen && late:
		if !m.overBounds(requests[i]) || !named || !inSequence || !containsAll(all, open) {
			fail("the open orders are %v, want some of %v, the newest first", open, all)
		}
	case class != want.class || !slices.Equal(fields, want.fields):
		fail("want code %q and field errors at %v", want.class.Code, want.fields)
	}
}

// containsAll reports whether some is a subset of all.
func containsAll[T comparable](all, some []T) bool {
	return !slices.ContainsFunc(some, func(v T) bool { return !slices.Contains(all, v) })
}

// endOrders pays, cancels and times out some of the orders, and lets the due times of others pass.
func (m *batchModel) endOrders(rt *rapid.T) {
	if len(m.orders) == 0 {
		return
	}
	for _, o := range rapid.SliceOfNDistinct(rapid.SampledFrom(m.orders), 0, min(3, len(m.orders)), rapid.ID).Draw(rt,
		"ended") {
		if o.status != order.Pending {
			continue
		}
		var err error
		how := rapid.SampledFrom([]string{"pay", "cancel", "expire", "timeOut", "hold"}).Draw(rt, "how")
		if o.expired && how != "timeOut" {
			continue
		}
		switch how {
		case "pay":
			if o.held() {
				continue
			}
			_, err = m.shop.Pay(m.t.Context(), o.customer, o.id)
			o.status = order.Paid
		case "cancel":
			if o.held() {
				continue
			}
			_, err = m.shop.Cancel(m.t.Context(), o.customer, o.id)
			o.status, o.reason = order.Cancelled, order.ByCustomer
			m.adjust(o, 1)
		case "expire": // its due time passes, also if it is held
			m.shop.Expire(m.t, o.id)
			o.createdAt, o.expired = o.createdAt.Add(-time.Hour), true
		case "timeOut":
			m.shop.Expire(m.t, o.id)
			o.createdAt = o.createdAt.Add(-time.Hour)
			m.shop.Deliver(m.t, o.id)
			o.status, o.reason = order.Cancelled, order.ByTimeout
			m.adjust(o, 1)
		case "hold":
			if !o.held() {
				m.shop.Hold(m.t, o.id)
			}
			o.hold = time.Now()
		}
		if err != nil {
			rt.Fatalf("order %+v: %v", o, err)
		}
	}
}

// check compares the stock and the orders in the database with the model.
func (m *batchModel) check(rt *rapid.T) {
	for product, want := range m.products {
		if got := m.shop.Available(m.t, product); got != want.available {
			rt.Fatalf("product %s: %d available, want %d", product, got, want.available)
		}
	}
	for _, customer := range m.customers {
		var want []*batchOrder
		for _, o := range m.orders {
			if o.customer == customer {
				want = append(want, o)
			}
		}
		got, _, err := m.shop.List(m.t.Context(), customer, nil, 1000)
		if err != nil || len(got) != len(want) {
			rt.Fatalf("customer %s has %d orders, error %v; want %d", customer, len(got), err, len(want))
		}
		for i, id := range newestFirst(want) {
			j := slices.IndexFunc(want, func(o *batchOrder) bool { return o.id == id })
			if got[i].ID != id || got[i].Status != want[j].status || got[i].CancelReason != want[j].reason {
				rt.Fatalf("order %d of customer %s is %+v, want %+v", i, customer, got[i], want[j])
			}
		}
	}
	rows := testenv.Query[string](m.t, m.shop.DB,
		`SELECT concat_ws(' ', count(*) FILTER (WHERE NOT EXISTS (SELECT FROM outbox WHERE task_id = o.id::text)),
		count(*) FILTER (WHERE total_cents <> (SELECT sum(quantity * unit_price_cents) FROM order_items i
			WHERE i.order_id = o.id))) FROM orders o WHERE customer_id = ANY ($1)`, m.customers)
	if rows != "0 0" {
		rt.Fatalf("orders without outbox row, and with a wrong total: %s, want none", rows)
	}
}
