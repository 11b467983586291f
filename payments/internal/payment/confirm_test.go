package payment_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
	"example.com/shop/payments/internal/payment"
)

// ask makes the attempts of an order due for a check that somebody waits for.
func (s *shop) ask(t testing.TB, id uuid.UUID) {
	t.Helper()
	s.exec(t, `UPDATE payment_attempts SET asked_at = clock_timestamp(), next_check = clock_timestamp() WHERE order_id = $1 AND next_check IS NOT NULL`, id)
}

// isAsked reports whether somebody waits for a check of an order's attempts.
func (s *shop) isAsked(t testing.TB, id uuid.UUID) bool {
	t.Helper()
	return testenv.Query[bool](t, s.db, `SELECT EXISTS (SELECT FROM payment_attempts WHERE order_id = $1 AND asked_at IS NOT NULL)`, id)
}

// confirm passes the confirm task of an order to its handler, like [shop.settle].
func (s *shop) confirm(t testing.TB, id uuid.UUID) (left time.Duration, again bool) {
	t.Helper()
	return handle(t, s.Asked().Handle, id.String())[0].Retry()
}

// TestConfirm checks when a check that somebody waits for is repeated, and how many calls it makes.
func TestConfirm(t *testing.T) {
	s := newMemoryShop(t)
	asked := func(t *testing.T) (*order.Order, *payment.Attempt) {
		t.Helper()
		o, a := s.placeOpen(t)
		s.ask(t, o.ID)
		return o, a
	}
	calls := func() string { return fmt.Sprintf("%d/%d", s.mem.count("retrieve"), s.mem.count("expire")) }
	for name, test := range map[string]func(*testing.T){
		"paid": func(t *testing.T) {
			o, a := asked(t)
			s.pay(t, a.CheckoutURL)
			if _, again := s.confirm(t, o.ID); again {
				t.Error("the task is due again, want it done")
			}
			s.wantOrder(t, o, "paid")
		},
		"not paid: the answer ends the wait": func(t *testing.T) {
			o, a := asked(t)
			if _, again := s.confirm(t, o.ID); again || s.isAsked(t, o.ID) {
				t.Error("the attempt is asked for after the answer, want it answered and the task done")
			}
			s.wantAttempt(t, o, a.ID, "open")
		},
		"no answer: soon, then less often": func(t *testing.T) {
			o, _ := asked(t)
			s.mem.fail("", failed(payment.Denied, ""))
			defer s.mem.fail("", nil)
			for _, test := range []struct{ age, want time.Duration }{{0, time.Second}, {20 * time.Second, 10 * time.Second}, {time.Hour, 30 * time.Second}} {
				s.shift(t, o.ID, test.age)
				s.exec(t, `UPDATE orders SET expires_at = greatest(expires_at, now() + interval '1 hour'), hold_until = greatest(hold_until, now() + interval '2 hours') WHERE id = $1`, o.ID)
				if left, again := s.confirm(t, o.ID); !again || !about(left, test.want) {
					t.Errorf("the check of a customer who has waited for %v is due in %v, %v; want %v", test.age, left, again, test.want)
				}
			}
		},
		"asked once more during the call": func(t *testing.T) {
			o, _ := asked(t)
			s.mem.hook("retrieve", memoryHook{before: func() error { s.ask(t, o.ID); return nil }})
			defer s.mem.hook("retrieve", memoryHook{})
			if left, again := s.confirm(t, o.ID); !again || left > time.Second || !s.isAsked(t, o.ID) {
				t.Errorf("the task is due again in %v, %v; want at once: the newer question has no answer", left, again)
			}
		},
		"closing and paid: one call": func(t *testing.T) {
			o, a := asked(t)
			s.pay(t, a.CheckoutURL)
			s.shiftToDeadline(t, o.ID, time.Second)
			before := calls()
			s.confirm(t, o.ID)
			s.wantOrder(t, o, "paid")
			if before == calls() || s.mem.count("expire") != 0 {
				t.Errorf("calls of retrieve and expire: %s before, %s after; want one of retrieve", before, calls())
			}
		},
		"closing and not paid: expired": func(t *testing.T) {
			o, a := asked(t)
			s.shiftToDeadline(t, o.ID, time.Second)
			s.confirm(t, o.ID)
			s.wantAttempt(t, o, a.ID, "closed")
			s.cancelDue(t, o.ID)
		},
		"closing, and paid between the calls": func(t *testing.T) {
			o, a := asked(t)
			s.shiftToDeadline(t, o.ID, time.Second)
			s.mem.hook("expire", memoryHook{before: func() error { s.mem.pay(a.CheckoutURL); return nil }})
			defer s.mem.hook("expire", memoryHook{})
			s.confirm(t, o.ID)
			s.settleNow(t, o.ID)
			s.wantOrder(t, o, "paid")
		},
		"the settle task does the same": func(t *testing.T) {
			o, a := asked(t)
			s.pay(t, a.CheckoutURL)
			s.settle(t, o.ID)
			s.wantOrder(t, o, "paid")
			if _, again := s.confirm(t, o.ID); again {
				t.Error("the confirm task is due again, want it done")
			}
		},
	} {
		s.mem.calls = map[string]int{}
		t.Run(name, test)
	}
	s.check(t)
}

// TestPendingAsked reads the table of the checks that somebody waits for.
func TestPendingAsked(t *testing.T) {
	s := newMemoryShop(t)
	s.placeOpen(t)
	o, _ := s.placeOpen(t)
	s.ask(t, o.ID)
	page, next, err := s.Asked().Pending(t.Context(), keyset.Cursor{}, aYear, 10)
	if err != nil || next != (keyset.Cursor{}) || len(page) != 1 || page[0].ID != o.ID.String() || page[0].Left() > 0 {
		t.Errorf("Pending returns %v, %v, %v; want only the order that somebody waits for, due now", page, next, err)
	}
	s.mem.fail("", failed(payment.NoAnswer, ""))
	if done, _, err := s.Asked().TimeOut(t.Context(), []string{o.ID.String()}); done != 0 || err != nil {
		t.Errorf("TimeOut returns %d, %v without an answer of the provider", done, err)
	}
	s.mem.fail("", nil)
}

// TestPaidEventAsks checks which events say that somebody waits, and which tasks they owe. The table of each kind has the
// row, because the reconciler compares the two.
func TestPaidEventAsks(t *testing.T) {
	s := newMemoryShop(t)
	for kind, asks := range map[string]bool{"checkout.session.completed": true, "checkout.session.expired": false} {
		o, a := s.placeOpen(t)
		s.settles.Take()
		s.exec(t, `DELETE FROM outbox`)
		s.deliver(t, eventBody("evt_"+o.ID.String(), kind, "v", sessionObject("cs_x", a.ID.String(), "test")))
		s.wantOwed(t, payment.SettleKind, o.ID.String())
		if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM outbox WHERE kind = $1`, payment.ConfirmKind); (n == 1) != asks {
			t.Errorf("%s: %d tasks %s are owed, want one: %v", kind, n, payment.ConfirmKind, asks)
		}
		page, _, err := s.Asked().Pending(t.Context(), keyset.Cursor{}, aYear, 10)
		testenv.Must(t, err)
		if settles, confirms := s.settles.Take(), s.confirms.Take(); len(settles) != 1 || (len(confirms) == 1) != asks || (len(page) == 1) != asks {
			t.Errorf("%s: published %v and %v, and the table has %v; want an asked check: %v", kind, settles, confirms, page, asks)
		}
		s.confirm(t, o.ID)
	}
}

// TestAskedChecksGoFirst has a provider that does not answer the polls of unpaid checkouts. Customers who have paid must not
// wait for the polls.
func TestAskedChecksGoFirst(t *testing.T) {
	t.Parallel()
	s := newMemoryShop(t)
	const loops = 2 // of a worker
	var polls, confirms []delay.Task
	var payers []*order.Order
	for range 2 * loops * payment.BatchSize {
		o, _ := s.placeOpen(t)
		polls = append(polls, delay.Task{ID: o.ID.String()})
	}
	s.exec(t, `UPDATE payment_attempts SET next_check = now()`)
	for range loops * payment.BatchSize {
		o, a := s.placeOpen(t)
		s.pay(t, a.CheckoutURL)
		s.deliver(t, eventBody("evt_"+o.ID.String(), "checkout.session.completed", "v", sessionObject("cs_"+a.ID.String(), a.ID.String(), "test")))
		payers = append(payers, o)
	}
	for _, msg := range s.confirms.Take() {
		confirms = append(confirms, delay.Task{ID: msg.ID})
	}
	var workers sync.WaitGroup
	answer := make(chan struct{})
	end := sync.OnceFunc(func() {
		close(answer)
		workers.Wait()
	})
	defer end()
	work := func(queue []delay.Task, handler delay.Handler) {
		batches := make(chan []delay.Task, len(queue))
		for batch := range slices.Chunk(queue, payment.BatchSize) {
			batches <- batch
		}
		close(batches)
		for range loops {
			workers.Go(func() {
				for batch := range batches {
					if _, err := handler(t.Context(), batch); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
	s.mem.hook("retrieve", memoryHook{before: func() error { <-answer; return nil }})
	work(polls, s.Attempts().Handle)
	testenv.Eventually(t, "polls in all slots", func() bool { return s.mem.count("retrieve") == loops*payment.BatchSize })
	s.mem.hook("retrieve", memoryHook{})
	work(confirms, s.Asked().Handle)
	testenv.Eventually(t, "the orders of all customers who have paid are paid", func() bool {
		return testenv.Query[int](t, s.db, `SELECT count(*) FROM orders WHERE status = 'paid'`) == len(payers)
	})
	end()
	for _, o := range payers {
		s.wantOrder(t, o, "paid")
	}
	if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM refunds`); n != 0 {
		t.Errorf("%d payments are refunded, want none", n)
	}
	s.check(t)
}
