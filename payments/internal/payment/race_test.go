package payment_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/provider"
)

// TestInterleavings plays sequences of events that are hard to handle, and checks the invariants after each.
func TestInterleavings(t *testing.T) {
	t.Parallel()
	s := newMemoryShop(t)
	for name, test := range map[string]func(*testing.T, *shop){
		"paid between deadline and end of the hold":                    paidInGrace,
		"paid in the grace, seen after the hold":                       paidInGraceSeenLate,
		"create answered 500 under its key for ever":                   createBroken,
		"create meets another request with its key":                    createInUse,
		"extension longer than the grace":                              extendedWhileHeld,
		"the API key was rotated for an hour":                          keyRotated,
		"the API key was rotated for an hour, and the order was paid":  keyRotatedPaid,
		"the answer of create was lost, and repeated":                  createLost,
		"the answer of expire was lost":                                expireLost,
		"webhook before the answer of create":                          webhookBeforeCreate,
		"webhook after the cancellation":                               webhookAfterCancellation,
		"webhook lost":                                                 webhookLost,
		"webhook doubled and stale":                                    webhookDoubled,
		"provider down at the deadline, back before the hold ends":     providerBackInTime,
		"provider down at the deadline, back after the hold has ended": providerBackLate,
		"attempt closed as stale during create":                        staleDuringCreate,
		"pay meets close":                                              payMeetsClose,
		"the customer pays before the checkout is closed":              payBeforeClose,
		"the customer pays after the checkout was closed":              payAfterClose,
		"a check that fails is repeated soon":                          failedCheckIsRepeatedSoon,
	} {
		t.Run(name, func(t *testing.T) {
			s.setAPI(t, "up")
			s.resetBreaker(t)
			test(t, s)
			s.check(t)
		})
	}
}

// cancel closes the checkout of an order, and cancels the order.
func (s *shop) cancel(t *testing.T, o *order.Order) {
	t.Helper()
	testenv.Must(t, s.Close(t.Context(), o.CustomerID, o.ID))
	_, err := s.orders.Cancel(t.Context(), o.CustomerID, o.ID)
	testenv.Must(t, err)
}

func paidInGrace(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.shiftToDeadline(t, o.ID, grace-5*time.Second)
	if !s.pay(t, a.CheckoutURL) {
		t.Fatal("the checkout rejects the payment")
	}
	s.cancelDue(t, o.ID)
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "succeeded applied")
	s.wantOrder(t, o, "paid")
	s.shift(t, o.ID, time.Minute)
	s.cancelDue(t, o.ID)
	s.wantOrder(t, o, "paid")
}

func paidInGraceSeenLate(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.shiftToDeadline(t, o.ID, time.Second)
	s.setAPI(t, "down")
	s.pay(t, a.CheckoutURL)
	s.settle(t, o.ID)
	s.shift(t, o.ID, grace)
	s.setAPI(t, "up")
	s.cancelDue(t, o.ID)
	s.wantOrder(t, o, "cancelled timeout")
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late owed")
	s.sendRefund(t, a.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late confirmed")
}

// createBroken has the provider store a response 500 for the idempotency key of an attempt. The attempt can never
// succeed: the customer gets another attempt, which has another key.
func createBroken(t *testing.T, s *shop) {
	o := s.place(t)
	s.setAPI(t, "errors")
	if _, _, err := s.Open(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != attempt.ProviderAway {
		t.Fatalf("Open returns %v, want provider-unavailable", err)
	}
	s.setAPI(t, "up")
	if _, opened, err := s.Open(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != attempt.CheckoutRefused || opened {
		t.Fatalf("the second Open returns opened %v, error %v; want the first attempt, and checkout-refused", opened, err)
	}
	s.wantOrder(t, o, "pending")
	a := s.open(t, o)
	if n := s.latest(t, o); n.ID != a.ID {
		t.Errorf("the third Open returns attempt %s, want the new one, %s", a.ID, n.ID)
	}
	s.cancel(t, o)
}

// createInUse has the provider answer 409, because another request uses the idempotency key. The attempt may still
// succeed, so a repeated request continues it.
func createInUse(t *testing.T, s *shop) {
	o := s.place(t)
	s.mem.fail("create", failed(provider.Busy, provider.KeyInUse))
	if _, _, err := s.Open(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != attempt.ProviderAway {
		t.Fatalf("Open returns %v, want provider-unavailable", err)
	}
	s.mem.fail("create", nil)
	first := s.latest(t, o)
	if a := s.open(t, o); a.ID != first.ID {
		t.Errorf("the repeated Open returns attempt %s, want %s", a.ID, first.ID)
	}
	s.cancel(t, o)
}

func extendedWhileHeld(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.shiftToDeadline(t, o.ID, -10*time.Second)
	extended, err := s.orders.Extend(t.Context(), o.CustomerID, o.ID)
	testenv.Must(t, err)
	if held := extended.HoldUntil.Sub(extended.ExpiresAt); held != grace {
		t.Errorf("the hold ends %v after the new deadline, want %v", held, grace)
	}
	s.shift(t, o.ID, time.Second+grace) // to the old end of the hold
	s.cancelDue(t, o.ID)
	s.settleNow(t, o.ID)
	s.wantAttempt(t, o, a.ID, "closed")
	s.wantOrder(t, o, "pending")
	next := s.open(t, o)
	s.shiftToDeadline(t, o.ID, time.Second)
	s.pay(t, next.CheckoutURL)
	s.settle(t, o.ID)
	s.wantOrder(t, o, "paid")
}

func keyRotated(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	other := s.place(t)
	s.rotateKey(t, "another")
	defer s.rotateKey(t, apiKey)
	if _, _, err := s.Open(t.Context(), other.CustomerID, other.ID); parttest.ClassOf(err) != attempt.ProviderAway {
		t.Errorf("Open with a wrong key returns %v, want provider-unavailable", err)
	}
	for range 12 {
		s.shift(t, o.ID, 5*time.Minute)
		s.cancelDue(t, o.ID)
		if _, again := s.settle(t, o.ID); !again { // handle checks that no task fails
			t.Fatal("the settle task is done, want it to be due again")
		}
	}
	s.wantOrder(t, o, "cancelled timeout")
	s.wantAttempt(t, o, a.ID, "open closing")
	s.rotateKey(t, apiKey)
	s.settleNow(t, o.ID)
	s.wantAttempt(t, o, a.ID, "closed")
	s.open(t, other) // continues the attempt
	if n := len(s.sessionsOf(t, s.latest(t, other).ID)); n != 1 {
		t.Errorf("the continued attempt has %d sessions, want 1", n)
	}
}

func keyRotatedPaid(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.rotateKey(t, "another")
	defer s.rotateKey(t, apiKey)
	s.pay(t, a.CheckoutURL)
	s.deliverAll(t, a.ID)
	for range 12 {
		s.shift(t, o.ID, 5*time.Minute)
		s.settle(t, o.ID)
		s.cancelDue(t, o.ID)
	}
	s.wantOrder(t, o, "cancelled timeout")
	s.rotateKey(t, apiKey)
	s.settleNow(t, o.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late owed")
	s.rotateKey(t, "another")
	s.refundNow(t, a)
	s.wantAttempt(t, o, a.ID, "succeeded late owed")
	s.rotateKey(t, apiKey)
	s.refundNow(t, a)
	s.wantAttempt(t, o, a.ID, "succeeded late confirmed")
}

// sessionsOf returns the provider's sessions of an attempt.
func (s *shop) sessionsOf(t testing.TB, attempt uuid.UUID) (all []ledgerEntry) {
	t.Helper()
	for _, e := range s.ledger(t) {
		if e.Attempt == attempt.String() {
			all = append(all, e)
		}
	}
	return all
}

func createLost(t *testing.T, s *shop) {
	o := s.place(t)
	s.setAPI(t, "loses_answers")
	if _, opened, err := s.Open(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != attempt.ProviderAway || !opened {
		t.Fatalf("Open returns opened %v, error %v; want an opened attempt and provider-unavailable", opened, err)
	}
	s.setAPI(t, "up")
	a, opened, err := s.Open(t.Context(), o.CustomerID, o.ID)
	testenv.Must(t, err)
	if opened || len(s.sessionsOf(t, a.ID)) != 1 {
		t.Errorf("the repeated Open returns opened %v, and the attempt has %d sessions; want false, 1", opened, len(s.sessionsOf(t, a.ID)))
	}
	s.pay(t, a.CheckoutURL)
	s.settleNow(t, o.ID)
	s.wantOrder(t, o, "paid")
}

func expireLost(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.shiftToDeadline(t, o.ID, time.Second)
	s.setAPI(t, "loses_answers")
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "open closing")
	s.wantOrder(t, o, "pending held")
	s.setAPI(t, "up")
	s.shift(t, o.ID, 3*time.Second)
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "closed")
	s.cancelDue(t, o.ID)
	s.wantOrder(t, o, "cancelled timeout")
}

func webhookBeforeCreate(t *testing.T, s *shop) {
	o := s.place(t)
	s.hook(t, hook{call: "create", after: func() {
		a := s.latest(t, o)
		s.pay(t, s.checkoutOf(t, a.ID))
		s.deliverAll(t, a.ID)
		s.settle(t, o.ID)
	}})
	if a, _, err := s.Open(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != order.AlreadyPaid {
		t.Errorf("Open returns %+v, %v; want order-paid", a, err)
	}
	s.wantAttempt(t, o, s.latest(t, o).ID, "succeeded applied")
	s.wantOrder(t, o, "paid")
}

func webhookAfterCancellation(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.setAPI(t, "down")
	s.shiftToDeadline(t, o.ID, grace)
	s.cancelDue(t, o.ID)
	s.settle(t, o.ID)
	s.pay(t, a.CheckoutURL)
	s.setAPI(t, "up")
	s.deliverAll(t, a.ID)
	if left, again := s.settle(t, o.ID); again {
		t.Errorf("the task is due again in %v, want it done", left)
	}
	s.wantAttempt(t, o, a.ID, "succeeded late owed")
	s.sendRefund(t, a.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late confirmed")
	s.wantOrder(t, o, "cancelled timeout")
}

func webhookLost(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.pay(t, a.CheckoutURL)
	s.shift(t, o.ID, 31*time.Second)
	s.settle(t, o.ID)
	s.wantOrder(t, o, "paid")
}

// webhookDoubled delivers an event of an attempt again after the order has another attempt, which must not change.
func webhookDoubled(t *testing.T, s *shop) {
	o, first := s.placeOpen(t)
	s.expireSession(t, first.ID)
	s.settleNow(t, o.ID)
	second := s.open(t, o)
	for range 2 {
		s.deliverAll(t, first.ID)
		s.settle(t, o.ID)
	}
	s.wantAttempt(t, o, second.ID, "open")
	s.wantOrder(t, o, "pending held")
	s.pay(t, second.CheckoutURL)
	for range 2 {
		s.deliverAll(t, second.ID)
		s.deliverAll(t, first.ID)
		s.settle(t, o.ID)
	}
	s.wantAttempt(t, o, first.ID, "closed")
	s.wantOrder(t, o, "paid")
}

func providerBackInTime(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.setAPI(t, "down")
	s.shiftToDeadline(t, o.ID, time.Second)
	s.settle(t, o.ID)
	s.shift(t, o.ID, time.Minute)
	s.cancelDue(t, o.ID)
	s.settle(t, o.ID)
	s.wantOrder(t, o, "pending held")
	s.setAPI(t, "up")
	s.shift(t, o.ID, 10*time.Second)
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "closed")
	s.cancelDue(t, o.ID)
	s.wantOrder(t, o, "cancelled timeout")
}

func providerBackLate(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.setAPI(t, "down")
	s.shiftToDeadline(t, o.ID, grace)
	s.settle(t, o.ID)
	s.cancelDue(t, o.ID)
	s.wantOrder(t, o, "cancelled timeout")
	s.wantAttempt(t, o, a.ID, "open closing")
	s.setAPI(t, "up")
	s.shift(t, o.ID, time.Minute)
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "closed")
}

// staleDuringCreate closes the attempt while its session is made. Open expires the session and opens another attempt.
func staleDuringCreate(t *testing.T, s *shop) {
	o := s.place(t)
	var once sync.Once
	s.hook(t, hook{call: "create", after: func() {
		once.Do(func() {
			s.shift(t, o.ID, 31*time.Second)
			s.settleNow(t, o.ID)
		})
	}})
	a := s.open(t, o)
	attempts, err := s.OfOrder(t.Context(), o.CustomerID, o.ID)
	testenv.Must(t, err)
	if len(attempts) != 2 || attempts[0].ID != a.ID || attempts[1].State != attempt.Closed {
		t.Fatalf("the attempts are %+v, want a closed and an open one", attempts)
	}
	if status := s.entry(t, attempts[1].ID).Status; status != "expired" {
		t.Errorf("the session of the closed attempt is %s, want expired", status)
	}
	s.pay(t, a.CheckoutURL)
	s.settleNow(t, o.ID)
	s.wantOrder(t, o, "paid")
}

// payMeetsClose has a customer pay while the session is expired. Exactly one of the two succeeds, and decides what
// becomes of the order.
func payMeetsClose(t *testing.T, s *shop) {
	for range 10 {
		o, a := s.placeOpen(t)
		s.shiftToDeadline(t, o.ID, time.Second)
		paid := make(chan bool)
		go func() { paid <- s.pay(t, a.CheckoutURL) }()
		s.settle(t, o.ID)
		won := <-paid
		s.settleNow(t, o.ID)
		s.cancelDue(t, o.ID)
		if won {
			s.wantOrder(t, o, "paid")
		} else {
			s.wantOrder(t, o, "cancelled timeout")
		}
	}
}

// payBeforeClose has the customer pay between the request to close the checkout and the provider's answer.
func payBeforeClose(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.hook(t, hook{call: "expire", before: func() {
		if !s.pay(t, a.CheckoutURL) {
			t.Error("the checkout rejects the payment")
		}
	}})
	if err := s.Close(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != order.AlreadyPaid {
		t.Errorf("Close returns %v, want order-paid", err)
	}
	if _, err := s.orders.Cancel(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != order.AlreadyPaid {
		t.Errorf("Cancel returns %v, want order-paid", err)
	}
	s.wantAttempt(t, o, a.ID, "succeeded applied")
	s.wantOrder(t, o, "paid")
}

// payAfterClose has the customer press pay when the provider has closed the checkout, and the shop does not know yet.
func payAfterClose(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.hook(t, hook{call: "expire", after: func() {
		if s.pay(t, a.CheckoutURL) {
			t.Error("the closed checkout takes a payment")
		}
	}})
	s.cancel(t, o)
	s.wantAttempt(t, o, a.ID, "closed")
	s.wantOrder(t, o, "cancelled customer")
}

// failedCheckIsRepeatedSoon has a check fail that a webhook caused. The check must be repeated before the next poll.
func failedCheckIsRepeatedSoon(t *testing.T, s *shop) {
	o, a := s.placeOpen(t)
	s.shift(t, o.ID, 10*time.Minute)
	s.pay(t, a.CheckoutURL)
	s.setAPI(t, "down")
	s.deliverAll(t, a.ID)
	if left, again := s.settle(t, o.ID); !again || left > 20*time.Second {
		t.Errorf("after a failed check the task is due again in %v, %v; want in 20 s", left, again)
	}
	s.setAPI(t, "up")
	s.settleNow(t, o.ID)
	s.wantOrder(t, o, "paid")
}

// TestTabsPayOneOrder checks that concurrent requests to pay an order get the same attempt, and that it has one
// session.
func TestTabsPayOneOrder(t *testing.T) {
	s := newMemoryShop(t)
	o := s.place(t)
	urls, opened := make([]string, 10), make([]bool, 10)
	var tabs sync.WaitGroup
	for i := range urls {
		tabs.Go(func() {
			a, isNew, err := s.Open(t.Context(), o.CustomerID, o.ID)
			if err != nil {
				t.Error(err)
				return
			}
			urls[i], opened[i] = a.CheckoutURL, isNew
		})
	}
	tabs.Wait()
	news := 0
	for i, url := range urls {
		if url == "" || url != urls[0] {
			t.Errorf("tab %d got the URL %q, tab 0 %q", i, url, urls[0])
		}
		if opened[i] {
			news++
		}
	}
	if sessions := s.ledger(t); len(sessions) != 1 || news != 1 {
		t.Errorf("%d sessions and %d new attempts, want 1 of each", len(sessions), news)
	}
}

// TestConcurrentSettlers checks that an attempt is settled once, and that the provider is asked once.
func TestConcurrentSettlers(t *testing.T) {
	s := newMemoryShop(t)
	o, a := s.placeOpen(t)
	s.pay(t, a.CheckoutURL)
	s.checkNow(t, o.ID)
	var settlers sync.WaitGroup
	for i := range 8 {
		settlers.Go(func() {
			if i%2 == 0 {
				if outcomes, err := s.Attempts().Handle(t.Context(), []delay.Task{{ID: a.ID.String()}}); err != nil || outcomes[0].Err() != nil {
					t.Errorf("Settle returns %v, %v", outcomes, err)
				}
			} else if _, _, err := s.Attempts().TimeOut(t.Context(), []string{a.ID.String()}); err != nil {
				t.Error(err)
			}
		})
	}
	settlers.Wait()
	s.wantAttempt(t, o, a.ID, "succeeded applied")
	if n := s.called("retrieve"); n != 1 {
		t.Errorf("the provider was asked %d times, want 1", n)
	}
	s.wantOrder(t, o, "paid")
	s.check(t)
}

// TestProviderSendsWebhooks checks that a webhook of the running simulator pays an order.
func TestProviderSendsWebhooks(t *testing.T) {
	s := openShop(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.startAtProvider(t, server.URL+"/webhooks/stripe")
	o, a := s.placeOpen(t)
	s.pay(t, a.CheckoutURL)
	testenv.Eventually(t, "the order is paid", func() bool {
		return testenv.Query[bool](t, s.db, `SELECT status = 'paid' FROM orders WHERE id = $1`, o.ID)
	})
}
