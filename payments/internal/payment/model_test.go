package payment_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/payment"
	"example.com/shop/payments/internal/provider"
)

// TestModel applies random steps to one order: of its customer, of the provider, of the workers, and of the time. Then
// it makes the provider work again and settles everything. In the end each payment that the customer saw succeed has
// paid the order, or is returned as a whole, never both and never neither.
func TestModel(t *testing.T) {
	t.Parallel()
	s := newMemoryShop(t)
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{t: t, shop: s, order: s.place(t), urls: map[string]uuid.UUID{}, paid: map[uuid.UUID]bool{}}
		m.heal()
		defer m.heal() // a failed run must not disturb the next one
		rt.Repeat(map[string]func(*rapid.T){
			"open":            m.open,
			"pay":             m.pay,
			"pay once more":   m.pay,
			"deliver":         m.deliver,
			"settle":          m.settle,
			"settle now":      m.settleNow,
			"send refunds":    m.sendRefunds,
			"cancel":          m.cancel,
			"close":           m.close,
			"cancel task":     m.cancelTask,
			"pay at once":     m.payAtOnce,
			"extend":          m.extend,
			"reschedule":      m.reschedule,
			"time passes":     m.timePasses,
			"deadline passes": m.deadlinePasses,
			"checkout ends":   m.checkoutEnds,
			"hold ends":       m.holdEnds,
			"session expires": m.sessionExpires,
			"API":             m.knobAPI,
			"sessions":        m.knobSessions,
			"refunds":         m.knobRefunds,
			"key":             m.knobKey,
			"":                m.checkStep,
		})
		m.finish(rt)
	})
	s.check(t)
}

// model is a customer with one order.
type model struct {
	t     *testing.T
	shop  *shop
	order *order.Order
	urls  map[string]uuid.UUID // of the checkouts that the customer has got, with their attempts
	paid  map[uuid.UUID]bool   // the attempts whose checkout said that the payment succeeded
	ended order.Status         // "": the order was pending after the last step
}

// openErrors are the classes of error that Open may return.
var openErrors = []rest.Class{
	order.AlreadyPaid, order.AlreadyCancelled, order.DeadlinePassed,
	attempt.TooManyAttempts, attempt.ProviderAway, attempt.CheckoutRefused,
}

func (m *model) open(rt *rapid.T) {
	a, _, err := m.shop.Open(m.t.Context(), m.order.CustomerID, m.order.ID)
	switch {
	case err != nil:
		if !slices.Contains(openErrors, parttest.ClassOf(err)) {
			rt.Fatalf("Open returns %v", err)
		}
	case a.State != attempt.Open || a.Closing || a.CheckoutURL == "":
		rt.Fatalf("Open returns %+v, want an open attempt with a URL", a)
	default:
		m.urls[a.CheckoutURL] = a.ID
		if n := len(m.shop.sessionsOf(m.t, a.ID)); n != 1 {
			rt.Fatalf("attempt %s has %d sessions, want 1", a.ID, n)
		}
	}
}

// drawURL returns one of the checkouts, also an old one, and skips the step if there is none.
func (m *model) drawURL(rt *rapid.T) string {
	if len(m.urls) == 0 {
		rt.Skip("no checkout")
	}
	return rapid.SampledFrom(slices.Sorted(maps.Keys(m.urls))).Draw(rt, "checkout")
}

func (m *model) pay(rt *rapid.T) {
	url := m.drawURL(rt)
	if m.shop.pay(m.t, url) {
		m.paid[m.urls[url]] = true
	}
}

// deliver delivers one of the provider's events about the order, perhaps an old one, perhaps once more.
func (m *model) deliver(rt *rapid.T) {
	var all []event
	for _, a := range m.attempts() {
		all = append(all, m.shop.events(m.t, a.ID)...)
	}
	if len(all) == 0 {
		rt.Skip("no events")
	}
	m.shop.deliver(m.t, rapid.SampledFrom(all).Draw(rt, "event").body)
}

func (m *model) attempts() []attempt.Attempt {
	attempts, err := m.shop.OfOrder(m.t.Context(), m.order.CustomerID, m.order.ID)
	testenv.Must(m.t, err)
	return attempts
}

func (m *model) settle(*rapid.T)     { m.shop.settle(m.t, m.order.ID) }
func (m *model) settleNow(*rapid.T)  { m.shop.settleNow(m.t, m.order.ID) }
func (m *model) cancelTask(*rapid.T) { m.shop.cancelDue(m.t, m.order.ID) }

func (m *model) sendRefunds(*rapid.T) {
	for _, a := range m.attempts() {
		if a.Refund != nil {
			m.shop.refundNow(m.t, &a)
		}
	}
}

// allow fails the run if err is neither nil nor of one of the classes.
func allow(rt *rapid.T, err error, classes ...rest.Class) {
	if err != nil && !slices.Contains(classes, parttest.ClassOf(err)) {
		rt.Fatalf("unexpected error: %v", err)
	}
}

func (m *model) cancel(rt *rapid.T) {
	_, err := m.shop.orders.Cancel(m.t.Context(), m.order.CustomerID, m.order.ID)
	allow(rt, err, order.AlreadyPaid, order.CheckoutOpen, order.DeadlinePassed)
}

func (m *model) close(rt *rapid.T) {
	err := m.shop.Close(m.t.Context(), m.order.CustomerID, m.order.ID)
	allow(rt, err, order.AlreadyPaid, order.CheckoutOpen, attempt.PaymentInProgress, attempt.ProviderAway)
}

func (m *model) payAtOnce(rt *rapid.T) {
	_, err := m.shop.orders.Pay(m.t.Context(), m.order.CustomerID, m.order.ID)
	allow(rt, err, order.CheckoutOpen, order.AlreadyCancelled, order.DeadlinePassed)
}

func (m *model) extend(rt *rapid.T) {
	_, err := m.shop.orders.Extend(m.t.Context(), m.order.CustomerID, m.order.ID)
	allow(rt, err, order.NotExtendable, order.AlreadyPaid, order.AlreadyCancelled, order.DeadlinePassed)
}

func (m *model) reschedule(rt *rapid.T) {
	left := rapid.SampledFrom([]time.Duration{time.Minute, time.Hour, 48 * time.Hour}).Draw(rt, "deadline")
	err := m.shop.reschedule(m.t, m.order.ID, left)
	allow(rt, err, order.NotExtendable, order.CheckoutOpen, order.AlreadyPaid, order.AlreadyCancelled, order.DeadlinePassed)
}

func (m *model) timePasses(rt *rapid.T) {
	seconds := rapid.SampledFrom([]int{2, 12, 40, 300}).Draw(rt, "seconds")
	m.shop.shift(m.t, m.order.ID, time.Duration(seconds)*time.Second)
}

// moveTo moves the clock of the order to just after the time in an expression of its columns, if that is in the future.
func (m *model) moveTo(column string) {
	left := testenv.Query[float64](m.t, m.shop.db, `SELECT greatest(0, coalesce(extract(epoch FROM `+column+` - clock_timestamp()), 0)) FROM orders WHERE id = $1`, m.order.ID)
	m.shop.shift(m.t, m.order.ID, time.Duration(left*float64(time.Second))+time.Millisecond)
}

// endOfCheckout is when the latest checkout of an order can be paid no longer.
const endOfCheckout = "greatest(expires_at, (SELECT max(closes_at) FROM payment_attempts WHERE order_id = orders.id))"

func (m *model) deadlinePasses(*rapid.T) { m.moveTo("expires_at") }
func (m *model) checkoutEnds(*rapid.T)   { m.moveTo(endOfCheckout) }
func (m *model) holdEnds(*rapid.T)       { m.moveTo("hold_until") }

func (m *model) sessionExpires(*rapid.T) {
	for _, a := range m.attempts() {
		m.shop.expireSession(m.t, a.ID)
	}
}

func (m *model) knobAPI(rt *rapid.T) {
	m.shop.setAPI(m.t, rapid.SampledFrom([]string{"up", "up", "down", "loses_answers", "errors"}).Draw(rt, "API"))
	m.shop.resetBreaker(m.t)
}

func (m *model) knobSessions(rt *rapid.T) {
	m.shop.refuseSessions(m.t, rapid.SampledFrom([]bool{false, false, true}).Draw(rt, "refuse"))
}

func (m *model) knobRefunds(rt *rapid.T) {
	m.shop.setRefunds(m.t, rapid.SampledFrom([]string{"succeed", "pending", "fail"}).Draw(rt, "refunds"))
}

func (m *model) knobKey(rt *rapid.T) {
	m.shop.rotateKey(m.t, rapid.SampledFrom([]string{apiKey, apiKey, "another"}).Draw(rt, "key"))
}

func (m *model) heal() {
	m.shop.setAPI(m.t, "up")
	m.shop.refuseSessions(m.t, false)
	m.shop.setRefunds(m.t, "succeed")
	m.shop.rotateKey(m.t, apiKey)
	m.shop.resetBreaker(m.t)
}

// checkStep checks what must hold after each step: an order that has ended does not change, and an order is held
// exactly while it is pending with a live attempt.
func (m *model) checkStep(rt *rapid.T) {
	o, err := m.shop.orders.Get(m.t.Context(), m.order.CustomerID, m.order.ID)
	testenv.Must(m.t, err)
	if m.ended != "" && o.Status != m.ended {
		rt.Fatalf("the order was %s and is %s", m.ended, o.Status)
	}
	if o.Status != order.Pending {
		m.ended = o.Status
		return
	}
	live := 0
	for _, a := range m.attempts() {
		if a.State == attempt.Creating || a.State == attempt.Open {
			live++
		}
	}
	if held := o.HoldUntil != nil; held != (live == 1) || live > 1 {
		rt.Fatalf("the pending order has %d live attempts, and is held: %v", live, held)
	}
}

// finish makes the provider work, lets the hold end, and settles everything. Then it checks the outcome.
func (m *model) finish(rt *rapid.T) {
	s := m.shop
	m.heal()
	m.moveTo(endOfCheckout)
	testenv.Eventually(m.t, "the end of all attempts and refunds", func() bool {
		m.settleNow(rt)
		m.cancelTask(rt)
		for _, a := range m.attempts() {
			if a.Refund == nil {
				continue
			}
			if a.Refund.State == provider.Failed {
				testenv.Must(m.t, s.refunder.Retry(m.t.Context(), uuid.MustParse(s.refundOf(m.t, a.ID))))
			}
			s.refundNow(m.t, &a)
		}
		m.checkStep(rt)
		return m.ended != "" && testenv.Query[bool](m.t, s.db, `SELECT coalesce(bool_and(a.next_check IS NULL AND (r.next_check IS NULL OR r.state = 'confirmed')
			AND coalesce(r.state, '') <> 'failed'), true) FROM payment_attempts a LEFT JOIN refunds r ON r.attempt_id = a.id WHERE a.order_id = $1`, m.order.ID)
	})
	m.checkOutcome(rt)
}

func (m *model) checkOutcome(rt *rapid.T) {
	applied := 0
	for _, a := range m.attempts() {
		for _, e := range m.shop.sessionsOf(m.t, a.ID) {
			goods := a.Applied && m.ended == order.Paid
			switch back := e.Refunded == e.Captured; {
			case (e.Captured > 0) != m.paid[a.ID]:
				rt.Fatalf("attempt %s: the customer saw a success: %v, the provider captured %d", a.ID, m.paid[a.ID], e.Captured)
			case e.Captured > 0 && goods && e.Refunded > 0, e.Captured > 0 && !goods && !back:
				rt.Fatalf("attempt %s: applied %v, order %s, captured %d, refunded %d", a.ID, a.Applied, m.ended, e.Captured, e.Refunded)
			}
		}
		if a.Applied {
			applied++
		}
	}
	byProvider := testenv.Query[bool](m.t, m.shop.db, `SELECT status = 'paid' AND ended_by = 'provider' FROM orders WHERE id = $1`, m.order.ID)
	if (applied == 1) != byProvider || applied > 1 {
		rt.Fatalf("%d successes are applied, the provider paid the order: %v", applied, byProvider)
	}
	violations, err := payment.Invariants(m.t.Context(), m.shop.gorm, time.Minute, false)
	testenv.Must(m.t, err)
	more, err := m.shop.orderDB.Invariants(m.t.Context(), time.Minute, false)
	testenv.Must(m.t, err)
	if len(violations)+len(more) > 0 {
		rt.Fatalf("violated invariants: %v %v", violations, more)
	}
}
