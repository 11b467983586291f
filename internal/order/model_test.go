package order_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
)

// TestModel applies the same random steps to a shop and to a model of it, and compares the two.
func TestModel(t *testing.T) {
	s := newShop(t)
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{t: t, shop: s, customer: s.customer(t), keys: map[string]placement{}, available: map[uuid.UUID]int64{}}
		for range 3 {
			supply := rapid.Int64Range(0, 6).Draw(rt, "supply")
			product := s.product(t, supply)
			m.products = append(m.products, product)
			m.available[product] = supply
		}
		rt.Repeat(map[string]func(*rapid.T){
			"place":   m.place,
			"pay":     m.pay,
			"cancel":  m.cancel,
			"expire":  m.expire,
			"timeOut": m.timeOut,
			"":        m.check,
		})
	})
	s.checkInvariants(t, 2*timeout)
}

// model is the expected state of a shop with one customer.
type model struct {
	t         *testing.T
	shop      *shop
	customer  uuid.UUID
	products  []uuid.UUID
	available map[uuid.UUID]int64
	orders    []*modelOrder
	keys      map[string]placement
}

// modelOrder is the expected state of an order.
type modelOrder struct {
	id      uuid.UUID
	lines   []order.Line
	status  order.Status
	reason  order.CancelReason
	expired bool
}

// placement is the order that was placed with an idempotency key.
type placement struct {
	order *modelOrder
	lines string // canonical
}

func (m *model) place(rt *rapid.T) {
	var lines []order.Line
	for _, product := range rapid.SliceOfNDistinct(rapid.SampledFrom(m.products), 1, 3, rapid.ID).Draw(rt, "products") {
		lines = append(lines, line(product, rapid.Int64Range(1, 3).Draw(rt, "quantity")))
	}
	key := rapid.SampledFrom([]string{"", "", "a", "b"}).Draw(rt, "key")
	want := m.expectPlaced(key, lines)

	o, replayed, err := m.shop.Place(m.t.Context(), m.customer, order.Placement{IdempotencyKey: key, Lines: lines})
	if kindOf(err) != want {
		rt.Fatalf("Place returns %v, want code %q", err, want.Code)
	}
	if err != nil {
		return
	}
	before, known := m.keys[key]
	if replayed != known {
		rt.Fatalf("Place with key %q returns replayed %v, want %v", key, replayed, known)
	}
	if known {
		if o.ID != before.order.id {
			rt.Fatalf("Place with key %q returns order %s, want the first order with the key, %s", key, o.ID, before.order.id)
		}
		return
	}
	placed := &modelOrder{id: o.ID, lines: lines, status: order.Pending}
	m.orders = append(m.orders, placed)
	m.adjustStock(placed, -1)
	if key != "" {
		m.keys[key] = placement{placed, canonical(lines)}
	}
}

// expectPlaced returns the kind of error that Place must return, the zero kind for none.
func (m *model) expectPlaced(key string, lines []order.Line) rest.Kind {
	if before, known := m.keys[key]; known {
		if before.lines != canonical(lines) {
			return rest.KeyReused
		}
		return rest.Kind{}
	}
	for _, l := range lines {
		if m.available[l.ProductID] < l.Quantity {
			return order.OutOfStock
		}
	}
	return rest.Kind{}
}

// canonical formats lines. The same lines in another order give the same text.
func canonical(lines []order.Line) string {
	quantities := map[uuid.UUID]int64{}
	for _, l := range lines {
		quantities[l.ProductID] = l.Quantity
	}
	return fmt.Sprint(quantities) // fmt sorts maps by key
}

// adjustStock reserves the stock of an order (sign -1) or releases it (sign 1).
func (m *model) adjustStock(o *modelOrder, sign int64) {
	for _, l := range o.lines {
		m.available[l.ProductID] += sign * l.Quantity
	}
}

// drawOrder returns a random order, and skips the step if there is none.
func (m *model) drawOrder(rt *rapid.T) *modelOrder {
	if len(m.orders) == 0 {
		rt.Skip("no orders")
	}
	return rapid.SampledFrom(m.orders).Draw(rt, "order")
}

func (m *model) pay(rt *rapid.T) {
	o := m.drawOrder(rt)
	want := rest.Kind{}
	switch {
	case o.status == order.Cancelled && o.reason == order.ByCustomer:
		want = order.AlreadyCancelled
	case o.status == order.Cancelled, o.status == order.Pending && o.expired:
		want = order.DeadlinePassed
	default:
		o.status = order.Paid
	}
	if _, err := m.shop.Pay(m.t.Context(), m.customer, o.id); kindOf(err) != want {
		rt.Fatalf("Pay of order %+v returns %v, want code %q", o, err, want.Code)
	}
}

func (m *model) cancel(rt *rapid.T) {
	o := m.drawOrder(rt)
	want := rest.Kind{}
	switch {
	case o.status == order.Paid:
		want = order.AlreadyPaid
	case o.status == order.Cancelled && o.reason == order.ByTimeout, o.status == order.Pending && o.expired:
		want = order.DeadlinePassed
	case o.status == order.Pending:
		o.status, o.reason = order.Cancelled, order.ByCustomer
		m.adjustStock(o, 1)
	}
	if _, err := m.shop.Cancel(m.t.Context(), m.customer, o.id); kindOf(err) != want {
		rt.Fatalf("Cancel of order %+v returns %v, want code %q", o, err, want.Code)
	}
}

func (m *model) expire(rt *rapid.T) {
	o := m.drawOrder(rt)
	if o.status != order.Pending || o.expired {
		rt.Skip("the order is not pending, or its deadline has passed already")
	}
	o.expired = true
	m.shop.expire(m.t, o.id)
}

func (m *model) timeOut(rt *rapid.T) {
	if len(m.orders) == 0 {
		rt.Skip("no orders")
	}
	var ids []uuid.UUID
	for _, o := range rapid.SliceOfN(rapid.SampledFrom(m.orders), 1, 5).Draw(rt, "orders") { // with duplicates
		ids = append(ids, o.id)
		if o.status == order.Pending && o.expired {
			o.status, o.reason = order.Cancelled, order.ByTimeout
			m.adjustStock(o, 1)
		}
	}
	m.shop.cancelDue(m.t, ids...)
}

// check compares the shop with the model.
func (m *model) check(rt *rapid.T) {
	for product, want := range m.available {
		if got := m.shop.available(m.t, product); got != want {
			rt.Fatalf("product %s: %d available, want %d", product, got, want)
		}
	}
	for _, o := range m.orders {
		got, err := m.shop.Get(m.t.Context(), m.customer, o.id)
		if err != nil || got.Status != o.status || got.CancelReason != o.reason {
			rt.Fatalf("Get returns %+v, %v; want %+v", got, err, o)
		}
	}
}
