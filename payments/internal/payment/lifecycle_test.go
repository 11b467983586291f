package payment_test

import (
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/provider"
	"example.com/shop/payments/internal/refund"
)

// TestTransitions takes each step between two states of an attempt. See the package comment.
func TestTransitions(t *testing.T) {
	s := newMemoryShop(t)
	for name, test := range map[string]func(*testing.T, *shop){
		"none to creating: committed before the provider is called": openCommitsFirst,
		"creating to open: the live attempt is returned again":      openAgain,
		"creating stays creating: its customer closes it":           openMeetsCancel,
		"creating to open: the deadline passes meanwhile":           openMeetsDeadline,
		"creating to closed: the provider refuses":                  createRefused,
		"creating to closed: 30 s pass":                             creatingIsStale,
		"creating to closed: its customer closes it":                creatingIsCancelled,
		"creating to closed: the deadline passes":                   creatingMeetsDeadline,
		"open to closed: the deadline passes":                       openClosesAtDeadline,
		"open to closed: its customer closes it":                    openIsClosed,
		"open to closed: no answer":                                 closeIsNotAnswered,
		"open stays open: the provider refuses to close it":         closeIsRefused,
		"open to closed: the answer is lost":                        closeLosesItsAnswer,
		"open to closed: the session expires by itself":             sessionExpires,
		"open to closed: the provider has lost the session":         sessionIsLost,
		"open to succeeded, applied":                                openSucceeds,
		"creating to succeeded, applied":                            creatingSucceeds,
		"closing to succeeded, applied":                             closingSucceeds,
		"open to succeeded, late: the order is cancelled":           succeedsAfterCancellation,
		"open to succeeded, late: the hold has ended":               succeedsAfterHold,
		"open to succeeded, mismatch":                               succeedsWithOtherAmount,
		"closed to succeeded, late":                                 closedSucceeds,
		"closed to succeeded, duplicate":                            closedSucceedsAfterPayment,
		"order to cancelled: the hold ends, the attempt stays live": holdEnds,
	} {
		t.Run(name, func(t *testing.T) {
			s.setAPI(t, "up")
			s.resetBreaker(t)
			test(t, s)
		})
	}
	s.check(t)
}

func openCommitsFirst(t *testing.T, s *shop) {
	o := s.place(t)
	s.exec(t, `DELETE FROM outbox WHERE task_id = $1`, o.ID.String())
	var state, url string
	var holds, owed bool
	s.hook(t, hook{call: "create", before: func() {
		a := s.latest(t, o)
		state, url = string(a.State), a.CheckoutURL
		holds = testenv.Query[bool](t, s.db, `SELECT hold_until = expires_at + interval '2 min' FROM orders WHERE id = $1`, o.ID)
		owed = testenv.Query[bool](t, s.db, `SELECT EXISTS (SELECT FROM outbox JOIN payment_attempts a ON task_id = a.id::text
			WHERE kind = 'payment.settle' AND order_id = $1 AND due_at = next_check)`, o.ID)
	}})
	a := s.open(t, o)
	if state != "creating" || url != "" || !holds || !owed {
		t.Errorf("during the call: state %q, URL %q, order held: %v, task owed: %v; want creating, no URL, true, true", state, url, holds, owed)
	}
	if a.AmountCents != 1000 || a.Currency != "EUR" || a.OrderID != o.ID || a.Closing {
		t.Errorf("the attempt is %+v", a)
	}
	if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM order_events WHERE order_id = $1 AND type = 'held' AND actor = 'customer'`, o.ID); n != 1 {
		t.Errorf("%d events held, want 1", n)
	}
	if s.notified.Of(o.CustomerID, o.ID) < 2 { // placed, opened
		t.Errorf("the customer is notified %d times, want at least 2", s.notified.Of(o.CustomerID, o.ID))
	}
	if session := s.entry(t, a.ID); session.Amount != 1000 || session.Status != "open" {
		t.Errorf("the provider's session is %+v, want an open one of 1000", session)
	}
}

func openAgain(t *testing.T, s *shop) {
	o, first := s.placeOpen(t)
	creates := s.called("create")
	second, opened, err := s.Open(t.Context(), o.CustomerID, o.ID)
	testenv.Must(t, err)
	if opened || second.ID != first.ID || second.CheckoutURL != first.CheckoutURL || s.called("create") != creates {
		t.Errorf("the second Open returns %+v, opened %v; want the first attempt and no call", second, opened)
	}
	if _, err := s.orders.Pay(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != order.CheckoutOpen {
		t.Errorf("Pay of the held order returns %v, want checkout-open", err)
	}
}

// openMeetsCancel tries to close the checkout and to cancel the order while the session is made. The customer must try
// again, and can cancel when the checkout is open.
func openMeetsCancel(t *testing.T, s *shop) {
	o := s.place(t)
	s.hook(t, hook{call: "create", after: func() {
		if err := s.Close(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != order.CheckoutOpen {
			t.Errorf("Close returns %v, want checkout-open", err)
		}
		if _, err := s.orders.Cancel(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != order.CheckoutOpen {
			t.Errorf("Cancel returns %v, want checkout-open", err)
		}
	}})
	s.open(t, o)
	s.cancel(t, o)
	s.wantOrder(t, o, "cancelled customer")
}

func openMeetsDeadline(t *testing.T, s *shop) {
	o := s.place(t)
	s.shiftToDeadline(t, o.ID, -10*time.Second)
	s.hook(t, hook{call: "create", after: func() { s.shiftToDeadline(t, o.ID, 200*time.Millisecond) }})
	a := s.open(t, o)
	s.wantAttempt(t, o, a.ID, "open")
	s.settleNow(t, o.ID)
	s.wantAttempt(t, o, a.ID, "open")
	s.pay(t, a.CheckoutURL)
	s.settleNow(t, o.ID)
	s.wantOrder(t, o, "paid")
}

func createRefused(t *testing.T, s *shop) {
	o := s.place(t)
	s.refuseSessions(t, true)
	_, _, err := s.Open(t.Context(), o.CustomerID, o.ID)
	s.refuseSessions(t, false)
	if parttest.ClassOf(err) != attempt.CheckoutRefused {
		t.Fatalf("Open returns %v, want checkout-refused", err)
	}
	s.wantAttempt(t, o, s.latest(t, o).ID, "closed")
	s.wantOrder(t, o, "pending")
	if due := testenv.Query[bool](t, s.db, `SELECT due_at = expires_at FROM orders WHERE id = $1`, o.ID); !due {
		t.Error("the released order is not due at its deadline")
	}
	s.open(t, o) // the customer can try again
}

func creatingIsStale(t *testing.T, s *shop) {
	o := s.place(t)
	s.setAPI(t, "down")
	_, opened, err := s.Open(t.Context(), o.CustomerID, o.ID)
	if parttest.ClassOf(err) != attempt.ProviderAway || !opened {
		t.Fatalf("Open returns opened %v, error %v; want an opened attempt and provider-unavailable", opened, err)
	}
	a := s.latest(t, o)
	s.shift(t, o.ID, 25*time.Second)
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "creating")
	s.shift(t, o.ID, 5*time.Second)
	s.settleNow(t, o.ID)
	s.wantAttempt(t, o, a.ID, "closed")
	s.wantOrder(t, o, "pending")
	if _, again := s.settle(t, o.ID); again {
		t.Error("the task of a closed attempt is due again, want it done")
	}
}

// creatingIsCancelled closes an attempt whose session the provider may or may not have made: at first it may still be
// made, and later nobody can learn its URL.
func creatingIsCancelled(t *testing.T, s *shop) {
	o := s.place(t)
	s.setAPI(t, "down")
	if _, _, err := s.Open(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != attempt.ProviderAway {
		t.Fatal(err)
	}
	if err := s.Close(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != order.CheckoutOpen {
		t.Errorf("Close returns %v, want checkout-open", err)
	}
	s.shift(t, o.ID, 31*time.Second)
	s.cancel(t, o)
	s.wantAttempt(t, o, s.latest(t, o).ID, "closed")
	s.wantOrder(t, o, "cancelled customer")
}

func creatingMeetsDeadline(t *testing.T, s *shop) {
	o := s.place(t)
	s.shiftToDeadline(t, o.ID, -5*time.Minute)
	s.setAPI(t, "down")
	if _, _, err := s.Open(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != attempt.ProviderAway {
		t.Fatal(err)
	}
	s.shiftToDeadline(t, o.ID, time.Millisecond)
	s.settle(t, o.ID)
	s.wantAttempt(t, o, s.latest(t, o).ID, "closed")
	s.cancelDue(t, o.ID)
	s.wantOrder(t, o, "cancelled timeout")
}

func openClosesAtDeadline(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.shiftToDeadline(t, o.ID, time.Millisecond)
	s.wantAttempt(t, o, a.ID, "open closing")
	if url := s.attempt(t, o, a.ID).CheckoutURL; url != "" {
		t.Errorf("a closing attempt has the URL %s, want none", url)
	}
	s.cancelDue(t, o.ID)
	s.wantOrder(t, o, "pending held")
	s.cancels.Take()
	s.exec(t, `DELETE FROM outbox`)
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "closed")
	s.wantOwed(t, "order.cancel", o.ID.String())
	if status := s.entry(t, a.ID).Status; status != "expired" {
		t.Errorf("the session is %s, want expired", status)
	}
	if msgs := s.cancels.Take(); len(msgs) != 1 || msgs[0].ID != o.ID.String() || msgs[0].Left() > 0 {
		t.Errorf("published cancel tasks: %v, want that of the order, due now", msgs)
	}
	s.cancelDue(t, o.ID)
	s.wantOrder(t, o, "cancelled timeout")
}

func openIsClosed(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.settles.Take()
	testenv.Must(t, s.Close(t.Context(), o.CustomerID, o.ID))
	s.wantAttempt(t, o, a.ID, "closed")
	s.wantOrder(t, o, "pending")
	expires := s.called("expire")
	s.cancel(t, o)
	s.wantOrder(t, o, "cancelled customer")
	if s.called("expire") != expires {
		t.Error("a closed checkout is closed once more")
	}
	if s.pay(t, a.CheckoutURL) {
		t.Error("the checkout takes a payment after the cancellation")
	}
	if err := s.Close(t.Context(), keyset.NewID(), o.ID); parttest.ClassOf(err) != rest.NotFound {
		t.Errorf("Close for another customer returns %v, want not-found", err)
	}
}

// closeIsNotAnswered has the provider not answer. Nothing changes, and the customer can pay, or close it again.
func closeIsNotAnswered(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	before := s.row(t, o)
	s.setAPI(t, "down")
	if err := s.Close(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != attempt.ProviderAway ||
		!strings.Contains(err.Error(), "may still be paid") {
		t.Errorf("Close returns %v, want provider-unavailable, and that the order may still be paid", err)
	}
	if after := s.row(t, o); after != before {
		t.Errorf("the order, its attempts, events and tasks are %s, want them as before: %s", after, before)
	}
	s.setAPI(t, "up")
	s.resetBreaker(t)
	s.pay(t, a.CheckoutURL)
	if err := s.Close(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != order.AlreadyPaid {
		t.Errorf("Close of a checkout that was paid returns %v, want order-paid", err)
	}
	s.wantAttempt(t, o, a.ID, "succeeded applied")
	s.wantOrder(t, o, "paid")
}

// closeIsRefused has the provider refuse to expire a session, because it decides on a payment.
func closeIsRefused(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.mem.fail("expire", failed(provider.Refused, ""))
	if err := s.Close(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != attempt.PaymentInProgress {
		t.Errorf("Close returns %v, want payment-in-progress", err)
	}
	s.wantAttempt(t, o, a.ID, "open")
	s.mem.fail("expire", nil)
	s.cancel(t, o)
	s.wantOrder(t, o, "cancelled customer")
}

// closeLosesItsAnswer has the provider expire the session without an answer. The provider's event, or the next check of
// the attempt, tells that it is closed.
func closeLosesItsAnswer(t *testing.T, s *shop) {
	for name, learn := range map[string]func(o *order.Order, a *attempt.Attempt){
		"event":      func(_ *order.Order, a *attempt.Attempt) { s.deliverAll(t, a.ID) },
		"next check": func(o *order.Order, _ *attempt.Attempt) { s.settleNow(t, o.ID) },
		"repetition": func(o *order.Order, _ *attempt.Attempt) { s.cancel(t, o) },
	} {
		o, a := s.placeOpen(t)
		s.hook(t, hook{call: "expire", lose: true})
		if err := s.Close(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != attempt.ProviderAway {
			t.Errorf("Close returns %v, want provider-unavailable", err)
		}
		s.wantAttempt(t, o, a.ID, "open")
		s.resetBreaker(t)
		learn(o, a)
		if s.attempt(t, o, a.ID).State != attempt.Closed {
			t.Errorf("%s: the attempt is not closed", name)
		}
		s.cancel(t, o)
		s.wantOrder(t, o, "cancelled customer")
	}
}

func sessionExpires(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.expireSession(t, a.ID)
	s.settleNow(t, o.ID)
	s.wantAttempt(t, o, a.ID, "closed")
	s.wantOrder(t, o, "pending")
	if next := s.open(t, o); next.ID == a.ID {
		t.Error("Open returns the closed attempt, want a new one")
	}
}

// sessionIsLost checks that the attempt stays open until its order has ended. Until then the customer may pay, and the
// key may be of another account.
func sessionIsLost(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.mem.set(func() {
		session := s.mem.of(t, a.ID)
		delete(s.mem.sessions, session.ID)
		s.mem.sessions["lost"] = session
	})
	s.shiftToDeadline(t, o.ID, time.Millisecond)
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "open closing")
	s.shiftToDeadline(t, o.ID, grace+time.Millisecond)
	s.cancelDue(t, o.ID)
	s.wantOrder(t, o, "cancelled timeout")
	s.settleNow(t, o.ID)
	s.wantAttempt(t, o, a.ID, "closed")
}

func openSucceeds(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.pay(t, a.CheckoutURL)
	s.settleNow(t, o.ID)
	s.wantAttempt(t, o, a.ID, "succeeded applied")
	s.wantOrder(t, o, "paid")
	if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM order_trail WHERE order_id = $1 AND type = 'paid' AND actor = 'provider'`, o.ID); n != 1 {
		t.Errorf("%d events paid by the provider, want 1", n)
	}
	if _, _, err := s.Open(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != order.AlreadyPaid {
		t.Errorf("Open of the paid order returns %v, want order-paid", err)
	}
}

func creatingSucceeds(t *testing.T, s *shop) {
	o := s.place(t)
	s.hook(t, hook{call: "create", lose: true})
	if _, _, err := s.Open(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != attempt.ProviderAway {
		t.Fatal(err)
	}
	a := s.latest(t, o)
	s.pay(t, s.checkoutOf(t, a.ID))
	s.deliverAll(t, a.ID)
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "succeeded applied")
	s.wantOrder(t, o, "paid")
}

func closingSucceeds(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.shiftToDeadline(t, o.ID, time.Second)
	s.pay(t, a.CheckoutURL) // the customer is faster than the shop
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "succeeded applied")
	s.wantOrder(t, o, "paid")
}

func succeedsAfterCancellation(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.pay(t, a.CheckoutURL)
	s.shiftToDeadline(t, o.ID, grace)
	s.cancelDue(t, o.ID)
	s.wantOrder(t, o, "cancelled timeout")
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late owed")
	s.wantOwed(t, refund.Kind, s.refundOf(t, a.ID))
	s.sendRefund(t, a.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late confirmed")
}

func succeedsAfterHold(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.pay(t, a.CheckoutURL)
	s.shiftToDeadline(t, o.ID, grace)
	s.exec(t, `DELETE FROM outbox`)
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late owed")
	s.wantOrder(t, o, "pending") // released
	s.wantOwed(t, "order.cancel", o.ID.String())
	s.wantOwed(t, "refund.send", s.refundOf(t, a.ID))
	s.cancelDue(t, o.ID)
	s.wantOrder(t, o, "cancelled timeout")
	s.sendRefund(t, a.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late confirmed")
}

func succeedsWithOtherAmount(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.setAmount(t, a.ID, 999)
	s.pay(t, a.CheckoutURL)
	s.settleNow(t, o.ID)
	s.wantAttempt(t, o, a.ID, "succeeded mismatch owed")
	s.wantOrder(t, o, "pending")
	s.sendRefund(t, a.ID)
	s.wantAttempt(t, o, a.ID, "succeeded mismatch confirmed")
	if refunded := s.entry(t, a.ID).Refunded; refunded != 999 {
		t.Errorf("the provider refunded %d, want what it captured, 999", refunded)
	}
	next := s.open(t, o) // the order can still be paid
	s.pay(t, next.CheckoutURL)
	s.settleNow(t, o.ID)
	s.wantOrder(t, o, "paid")
}

// closeCreating returns an attempt that was closed while the provider's answer to its creation is lost. Its session is
// open at the provider.
func (s *shop) closeCreating(t *testing.T, o *order.Order) *attempt.Attempt {
	t.Helper()
	s.hook(t, hook{call: "create", lose: true})
	if _, _, err := s.Open(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != attempt.ProviderAway {
		t.Fatal(err)
	}
	s.unhook()
	s.shift(t, o.ID, 31*time.Second)
	s.settleNow(t, o.ID)
	a := s.latest(t, o)
	s.wantAttempt(t, o, a.ID, "closed")
	return a
}

func closedSucceeds(t *testing.T, s *shop) {
	o := s.place(t)
	a := s.closeCreating(t, o)
	next := s.open(t, o) // the second attempt holds the order
	s.pay(t, s.checkoutOf(t, a.ID))
	s.deliverAll(t, a.ID) // brings the id of the session
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late owed")
	s.wantOrder(t, o, "pending held")
	s.sendRefund(t, a.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late confirmed")
	s.wantAttempt(t, o, next.ID, "open")
	s.pay(t, next.CheckoutURL)
	s.settleNow(t, o.ID)
	s.wantOrder(t, o, "paid")
	s.wantAttempt(t, o, a.ID, "succeeded duplicate confirmed") // although it settled before
}

// TestTwoPaidAttempts settles two attempts of an order, both paid, at the same time. One pays the order. The customer
// has paid the other one for nothing, although in time, whichever of the two settles first.
func TestTwoPaidAttempts(t *testing.T) {
	s := newMemoryShop(t)
	for range 10 {
		o := s.place(t)
		a := s.closeCreating(t, o)
		next := s.open(t, o)
		s.pay(t, s.checkoutOf(t, a.ID))
		s.pay(t, next.CheckoutURL)
		s.deliverAll(t, a.ID)
		s.deliverAll(t, next.ID)
		s.settle(t, o.ID)
		s.wantOrder(t, o, "paid")
		s.wantAttempt(t, o, a.ID, "succeeded duplicate owed")
		s.wantAttempt(t, o, next.ID, "succeeded applied")
	}
	s.check(t)
}

func closedSucceedsAfterPayment(t *testing.T, s *shop) {
	o := s.place(t)
	a := s.closeCreating(t, o)
	next := s.open(t, o)
	s.pay(t, next.CheckoutURL)
	s.settleNow(t, o.ID)
	s.pay(t, s.checkoutOf(t, a.ID))
	s.deliverAll(t, a.ID)
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "succeeded duplicate owed")
	s.wantAttempt(t, o, next.ID, "succeeded applied")
	s.sendRefund(t, a.ID)
	s.wantAttempt(t, o, a.ID, "succeeded duplicate confirmed")
	s.wantOrder(t, o, "paid")
}

func holdEnds(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.shiftToDeadline(t, o.ID, grace-10*time.Second)
	s.setAPI(t, "down")
	if left, again := s.settle(t, o.ID); !again || left < time.Second || left > 10*time.Second {
		t.Errorf("the task is due again in %v, %v; want in some seconds", left, again)
	}
	s.cancelDue(t, o.ID)
	s.wantOrder(t, o, "pending held")
	s.shift(t, o.ID, 10*time.Second)
	s.cancelDue(t, o.ID)
	s.wantOrder(t, o, "cancelled timeout")
	s.wantAttempt(t, o, a.ID, "open closing")
	s.setAPI(t, "up")
	s.resetBreaker(t)
	s.settleNow(t, o.ID)
	s.wantAttempt(t, o, a.ID, "closed")
	if s.pay(t, a.CheckoutURL) {
		t.Error("the checkout takes a payment after the attempt was closed")
	}
}

// wantOwed checks that the outbox has a task that is due now.
func (s *shop) wantOwed(t *testing.T, kind, id string) {
	t.Helper()
	if !testenv.Query[bool](t, s.db, `SELECT EXISTS (SELECT FROM outbox WHERE kind = $1 AND task_id = $2 AND due_at <= now())`, kind, id) {
		t.Errorf("the outbox has no task %s %s that is due", kind, id)
	}
}

// TestAttemptsOfAnOrderAreLimited checks that an order has at most fifty attempts.
func TestAttemptsOfAnOrderAreLimited(t *testing.T) {
	s := newMemoryShop(t)
	o := s.place(t)
	for range 50 {
		a := s.open(t, o)
		s.expireSession(t, a.ID)
		s.settleNow(t, o.ID)
	}
	if _, _, err := s.Open(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != attempt.TooManyAttempts {
		t.Errorf("the fifty-first Open returns %v, want too-many-attempts", err)
	}
	s.wantOrder(t, o, "pending")
	if _, err := s.orders.Pay(t.Context(), o.CustomerID, o.ID); err != nil {
		t.Errorf("the order cannot be paid at once: %v", err)
	}
	s.check(t)
}

// latest returns the latest attempt of an order.
func (s *shop) latest(t testing.TB, o *order.Order) *attempt.Attempt {
	t.Helper()
	attempts, err := s.OfOrder(t.Context(), o.CustomerID, o.ID)
	testenv.Must(t, err)
	if len(attempts) == 0 {
		t.Fatalf("order %s has no attempts", o.ID)
	}
	return &attempts[0]
}
