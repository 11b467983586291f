package order_test

import (
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

// TestModel applies the same random steps to a shop and to a model of it, and compares the two.
func TestModel(t *testing.T) {
	t.Parallel()
	s := newShop(t, bounds{orders: modelMaxOpen}.set)
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{t: t, shop: s, customer: s.Customer(t), keys: map[string]placement{},
			available: map[uuid.UUID]int64{}}
		for range 3 {
			supply := rapid.Int64Range(0, 6).Draw(rt, "supply")
			product := s.Product(t, supply)
			m.products = append(m.products, product)
			m.available[product] = supply
		}
		rt.Repeat(map[string]func(*rapid.T){
			"place":      m.place,
			"pay":        m.pay,
			"cancel":     m.cancel,
			"extend":     m.extend,
			"hold":       m.hold,
			"release":    m.release,
			"payHeld":    m.payHeld,
			"reschedule": m.reschedule,
			"expire":     m.expire,
			"endHold":    m.endHold,
			"timeOut":    m.timeOut,
			"book":       m.book,
			"":           m.check,
		})
	})
	s.CheckInvariants(t, 24*time.Hour)
}

// modelMaxOpen is the most open orders of the customer of a [model].
const modelMaxOpen = 4

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
	expired bool // its deadline has passed

	deadline   time.Time
	hold       time.Time // the end of its hold, zero if it is not held; it stays set when the order ends
	holdEnded  bool      // its hold has ended, without a release
	extensions int64     // by its customer
}

func (o *modelOrder) held() bool { return !o.hold.IsZero() }

// move moves the deadline, and the end of the hold with it.
func (o *modelOrder) move(by time.Duration) {
	o.deadline = o.deadline.Add(by)
	if o.held() {
		o.hold = o.hold.Add(by)
	}
}

// rejected returns the class of the error with which any change by the customer is rejected: the order has ended, or
// its deadline has passed. It returns the zero class if there is no such error.
func (o *modelOrder) rejected() rest.Class {
	switch {
	case o.status == order.Paid:
		return order.AlreadyPaid
	case o.status == order.Cancelled && o.reason == order.ByCustomer:
		return order.AlreadyCancelled
	case o.status == order.Cancelled, o.expired:
		return order.DeadlinePassed
	}
	return rest.Class{}
}

// due reports whether the order is due to be cancelled.
func (o *modelOrder) due() bool {
	if o.held() {
		return o.holdEnded
	}
	return o.expired
}

// isOpen reports whether the order counts towards the bounds of its customer.
func (o *modelOrder) isOpen() bool { return o.status == order.Pending && !o.due() }

// placement is the order that was placed with an idempotency key.
type placement struct {
	order *modelOrder
	batch *batchOrder // set instead of order in a [batchModel]
	lines string      // see canonical
}

func (m *model) place(rt *rapid.T) {
	var lines []order.Line
	for _, product := range rapid.SliceOfNDistinct(rapid.SampledFrom(m.products), 1, 3, rapid.ID).Draw(rt, "products") {
		lines = append(lines, line(product, rapid.Int64Range(1, 3).Draw(rt, "quantity")))
	}
	key := rapid.SampledFrom([]string{"", "", "a", "b"}).Draw(rt, "key")
	want := m.expectPlaced(key, lines)

	o, replayed, err := m.shop.Place(m.t.Context(), m.customer, order.Placement{IdempotencyKey: key, Lines: lines})
	if parttest.ClassOf(err) != want {
		rt.Fatalf("Place returns %v, want code %q", err, want.Code)
	}
	if want == order.OutOfStock || want == order.TooManyOpen {
		open := m.holding(lines)
		if want == order.TooManyOpen {
			open = m.open()
		}
		named, _ := err.(*rest.Error).Extensions["open_orders"].([]uuid.UUID)
		if len(named) != len(open) || !containsAll(open, named) {
			rt.Fatalf("Place returns %v with the open orders %v, want %v", err, named, open)
		}
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
			rt.Fatalf("Place with key %q returns order %s, want the first order with the key, %s", key, o.ID,
				before.order.id)
		}
		return
	}
	placed := &modelOrder{id: o.ID, lines: lines, status: order.Pending, deadline: o.ExpiresAt}
	m.orders = append(m.orders, placed)
	m.adjustStock(placed, -1)
	if key != "" {
		m.keys[key] = placement{order: placed, lines: canonical(lines)}
	}
}

// expectPlaced returns the class of error that Place must return, the zero class for none.
func (m *model) expectPlaced(key string, lines []order.Line) rest.Class {
	if before, known := m.keys[key]; known {
		if before.lines != canonical(lines) {
			return rest.KeyReused
		}
		return rest.Class{}
	}
	for _, l := range lines {
		if m.available[l.ProductID] < l.Quantity {
			return order.OutOfStock
		}
	}
	if len(m.open()) >= modelMaxOpen {
		return order.TooManyOpen
	}
	return rest.Class{}
}

// open returns the ids of the open orders.
func (m *model) open() (ids []uuid.UUID) {
	for _, o := range m.orders {
		if o.isOpen() {
			ids = append(ids, o.id)
		}
	}
	return ids
}

// holding returns the ids of the open orders that hold units of a product of which too little is left for the lines.
func (m *model) holding(lines []order.Line) (ids []uuid.UUID) {
	for _, o := range m.orders {
		if o.isOpen() && slices.ContainsFunc(o.lines, func(held order.Line) bool {
			return slices.ContainsFunc(lines, func(l order.Line) bool {
				return l.ProductID == held.ProductID && l.Quantity > m.available[l.ProductID]
			})
		}) {
			ids = append(ids, o.id)
		}
	}
	return ids
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
	want := o.rejected()
	switch {
	case o.status == order.Paid:
		want = rest.Class{}
	case want != rest.Class{}:
	case o.held():
		want = order.CheckoutOpen
	default:
		o.status = order.Paid
	}
	if _, err := m.shop.Pay(m.t.Context(), m.customer, o.id); parttest.ClassOf(err) != want {
		rt.Fatalf("Pay of order %+v returns %v, want code %q", o, err, want.Code)
	}
}

func (m *model) cancel(rt *rapid.T) {
	o := m.drawOrder(rt)
	want := o.rejected()
	switch {
	case want == order.AlreadyCancelled:
		want = rest.Class{}
	case o.status == order.Pending && o.held() && !o.holdEnded:
		want = order.CheckoutOpen
	case want == rest.Class{}:
		o.status, o.reason = order.Cancelled, order.ByCustomer
		m.adjustStock(o, 1)
	}
	if _, err := m.shop.Cancel(m.t.Context(), m.customer, o.id); parttest.ClassOf(err) != want {
		rt.Fatalf("Cancel of order %+v returns %v, want code %q", o, err, want.Code)
	}
}

func (m *model) extend(rt *rapid.T) {
	o := m.drawOrder(rt)
	want := o.rejected()
	switch {
	case want != rest.Class{}:
	case o.extensions == ordertest.MaxExtensions:
		want = order.NotExtendable
	default:
		o.extensions++
		o.move(extension)
	}
	if _, err := m.shop.Extend(m.t.Context(), m.customer, o.id); parttest.ClassOf(err) != want {
		rt.Fatalf("Extend of order %+v returns %v, want code %q", o, err, want.Code)
	}
}

// reschedule moves the deadline of an order as an operator does, to an earlier or a later time.
func (m *model) reschedule(rt *rapid.T) {
	o := m.drawOrder(rt)
	left := rapid.SampledFrom([]time.Duration{5 * time.Minute, 30 * time.Minute, 24 * time.Hour}).Draw(rt, "deadline")
	deadline := time.Now().Add(left).Round(time.Microsecond)
	want := o.rejected()
	switch {
	case want != rest.Class{}:
	case o.held() && deadline.Before(o.deadline):
		want = order.CheckoutOpen
	default:
		o.move(deadline.Sub(o.deadline))
	}
	if _, err := m.shop.Reschedule(m.t.Context(), o.id, deadline, "a test"); parttest.ClassOf(err) != want {
		rt.Fatalf("Reschedule of order %+v to %v returns %v, want code %q", o, deadline, err, want.Code)
	}
}

// longHoldSQL holds an order until long after its deadline, so that the deadline can pass before the hold ends.
const longHoldSQL = `UPDATE orders SET hold_until = expires_at + interval '10 hours' WHERE id = $1`

func (m *model) hold(rt *rapid.T) {
	o := m.drawOrder(rt)
	if o.status != order.Pending || o.held() || o.expired {
		rt.Skip("the order cannot be held")
	}
	o.hold = o.deadline.Add(10 * time.Hour)
	m.shop.Exec(m.t, longHoldSQL, o.id)
}

func (m *model) release(rt *rapid.T) {
	o := m.drawOrder(rt)
	if o.status != order.Pending || !o.held() {
		rt.Skip("the order is not pending, or not held")
	}
	o.hold, o.holdEnded = time.Time{}, false
	m.shop.Release(m.t, o.id)
}

func (m *model) payHeld(rt *rapid.T) {
	o := m.drawOrder(rt)
	if o.status != order.Pending || !o.held() || o.holdEnded {
		rt.Skip("the order is not pending, or its hold is over")
	}
	o.status = order.Paid
	m.shop.PayHeld(m.t, o.id)
}

// passTo lets time pass for an order until a second after one of its times.
func (m *model) passTo(o *modelOrder, at time.Time) {
	by := (time.Until(at) + time.Second).Round(time.Microsecond)
	o.move(-by)
	m.shop.Pass(m.t, o.id, by)
}

func (m *model) endHold(rt *rapid.T) {
	o := m.drawOrder(rt)
	if o.status != order.Pending || !o.held() || o.holdEnded {
		rt.Skip("the order is not pending, or its hold is over")
	}
	o.expired, o.holdEnded = true, true
	m.passTo(o, o.hold)
}

func (m *model) expire(rt *rapid.T) {
	if len(m.orders) == 0 {
		return // rapid gives up if it finds no step that is not skipped, and almost all steps need an order
	}
	o := m.drawOrder(rt)
	if o.status != order.Pending || o.expired {
		rt.Skip("the order is not pending, or its deadline has passed already")
	}
	o.expired = true
	m.passTo(o, o.deadline)
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

func (m *model) timeOut(rt *rapid.T) {
	if len(m.orders) == 0 {
		rt.Skip("no orders")
	}
	var ids []uuid.UUID
	for _, o := range rapid.SliceOfN(rapid.SampledFrom(m.orders), 1, 5).Draw(rt, "orders") { // with duplicates
		ids = append(ids, o.id)
		if o.status == order.Pending && o.due() {
			o.status, o.reason = order.Cancelled, order.ByTimeout
			m.adjustStock(o, 1)
		}
	}
	m.shop.Deliver(m.t, ids...)
}

// check compares the shop with the model.
func (m *model) check(rt *rapid.T) {
	for product, want := range m.available {
		if got := m.shop.Available(m.t, product); got != want {
			rt.Fatalf("product %s: %d available, want %d", product, got, want)
		}
	}
	for _, o := range m.orders {
		got, err := m.shop.Get(m.t.Context(), m.customer, o.id)
		extendable := o.rejected() == rest.Class{} && o.extensions < ordertest.MaxExtensions
		if err != nil || got.Status != o.status || got.CancelReason != o.reason || got.Extensions != o.extensions ||
			!got.ExpiresAt.Equal(o.deadline) || (got.HoldUntil != nil) != o.held() || o.held() &&
			!got.HoldUntil.Equal(o.hold) ||
			(got.ExtensionSeconds > 0) != extendable {
			rt.Fatalf("Get returns %+v, %v; want %+v", got, err, o)
		}
	}
}
