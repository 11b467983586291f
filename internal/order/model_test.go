package order_test

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"example.com/shop/internal/order"
)

// TestModel drives a shop and a plain model of it with the same steps, in any order.
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
	s.keepsPromise(t, 2*timeout)
}

type model struct {
	t         *testing.T
	shop      *shop
	customer  uuid.UUID
	products  []uuid.UUID
	available map[uuid.UUID]int64
	orders    []*modelled
	keys      map[string]placement
}

// modelled is what the model knows of an order.
type modelled struct {
	id      uuid.UUID
	lines   []order.Line
	status  order.Status
	reason  order.CancelReason
	expired bool
}

type placement struct {
	order *modelled
	lines string
}

func (m *model) place(rt *rapid.T) {
	var lines []order.Line
	for _, product := range rapid.SliceOfNDistinct(rapid.SampledFrom(m.products), 1, 3, rapid.ID).Draw(rt, "products") {
		lines = append(lines, line(product, rapid.Int64Range(1, 3).Draw(rt, "quantity")))
	}
	key := rapid.SampledFrom([]string{"", "", "a", "b"}).Draw(rt, "key")
	want := m.expectPlaced(key, lines)

	o, replayed, err := m.shop.Place(m.t.Context(), m.customer, order.Placement{IdempotencyKey: key, Lines: lines})
	if codeOf(err) != want {
		rt.Fatalf("place: %v, want %q", err, want)
	}
	if err != nil {
		return
	}
	if before, known := m.keys[key]; known || replayed {
		if !replayed || before.order.id != o.ID {
			rt.Fatalf("key %q: order %s, replayed %v, want %+v", key, o.ID, replayed, before)
		}
		return
	}
	placed := &modelled{id: o.ID, lines: lines, status: order.Pending}
	m.orders = append(m.orders, placed)
	m.move(placed, -1)
	if key != "" {
		m.keys[key] = placement{placed, spell(lines)}
	}
}

func (m *model) expectPlaced(key string, lines []order.Line) order.Code {
	if before, known := m.keys[key]; known {
		if before.lines != spell(lines) {
			return order.CodeKeyReused
		}
		return ""
	}
	for _, l := range lines {
		if m.available[l.ProductID] < l.Quantity {
			return order.CodeOutOfStock
		}
	}
	return ""
}

// spell writes lines such that their order does not matter.
func spell(lines []order.Line) string {
	quantities := map[uuid.UUID]int64{}
	for _, l := range lines {
		quantities[l.ProductID] = l.Quantity
	}
	return fmt.Sprint(quantities) // sorted by key
}

// move takes an order's stock (-1) or puts it back (1).
func (m *model) move(o *modelled, sign int64) {
	for _, l := range o.lines {
		m.available[l.ProductID] += sign * l.Quantity
	}
}

func (m *model) any(rt *rapid.T) *modelled {
	if len(m.orders) == 0 {
		rt.Skip("no orders")
	}
	return rapid.SampledFrom(m.orders).Draw(rt, "order")
}

func (m *model) pay(rt *rapid.T) {
	o := m.any(rt)
	want := order.Code("")
	switch {
	case o.status == order.Cancelled && o.reason == order.ByCustomer:
		want = order.CodeOrderCancelled
	case o.status == order.Cancelled, o.status == order.Pending && o.expired:
		want = order.CodeDeadlinePassed
	default:
		o.status = order.Paid
	}
	if _, err := m.shop.Pay(m.t.Context(), m.customer, o.id); codeOf(err) != want {
		rt.Fatalf("pay %+v: %v, want %q", o, err, want)
	}
}

func (m *model) cancel(rt *rapid.T) {
	o := m.any(rt)
	want := order.Code("")
	switch {
	case o.status == order.Paid:
		want = order.CodeOrderPaid
	case o.status == order.Cancelled && o.reason == order.ByTimeout, o.status == order.Pending && o.expired:
		want = order.CodeDeadlinePassed
	case o.status == order.Pending:
		o.status, o.reason = order.Cancelled, order.ByCustomer
		m.move(o, 1)
	}
	if _, err := m.shop.Cancel(m.t.Context(), m.customer, o.id); codeOf(err) != want {
		rt.Fatalf("cancel %+v: %v, want %q", o, err, want)
	}
}

func (m *model) expire(rt *rapid.T) {
	o := m.any(rt)
	if o.status != order.Pending || o.expired {
		rt.Skip("not to be expired")
	}
	o.expired = true
	m.shop.expire(m.t, o.id)
}

func (m *model) timeOut(rt *rapid.T) {
	if len(m.orders) == 0 {
		rt.Skip("no orders")
	}
	var ids []uuid.UUID
	for _, o := range rapid.SliceOfN(rapid.SampledFrom(m.orders), 1, 5).Draw(rt, "orders") { // some twice
		ids = append(ids, o.id)
		if o.status == order.Pending && o.expired {
			o.status, o.reason = order.Cancelled, order.ByTimeout
			m.move(o, 1)
		}
	}
	m.shop.cancelDue(m.t, ids...)
}

func (m *model) check(rt *rapid.T) {
	for product, want := range m.available {
		if got := m.shop.available(m.t, product); got != want {
			rt.Fatalf("%d of product %s are available, want %d", got, product, want)
		}
	}
	for _, o := range m.orders {
		got, err := m.shop.Get(m.t.Context(), m.customer, o.id)
		if err != nil || got.Status != o.status || got.CancelReason != o.reason {
			rt.Fatalf("order is %+v, %v, want %+v", got, err, o)
		}
	}
}
