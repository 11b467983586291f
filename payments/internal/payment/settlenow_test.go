package payment_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/check"
	"example.com/shop/payments/internal/provider"
)

// tell delivers an event that says that the session of an attempt is complete.
func (s *shop) tell(t testing.TB, a *attempt.Attempt) {
	t.Helper()
	s.deliver(t, eventBody("evt_"+uuid.NewString(), "checkout.session.completed", "v", sessionObject("cs_"+a.ID.String(), a.ID.String(), "test")))
}

// owedIn returns the time until the settle task of an order is due by the outbox.
func (s *shop) owedIn(t *testing.T, id uuid.UUID) time.Duration {
	t.Helper()
	left := testenv.Query[float64](t, s.db, `SELECT extract(epoch FROM due_at - clock_timestamp()) FROM outbox
		WHERE kind = $1 AND task_id IN (SELECT id::text FROM payment_attempts WHERE order_id = $2)`, attempt.Kind, id)
	return time.Duration(left * float64(time.Second))
}

// TestEventSettlesAtOnce delivers events that say that a customer has paid. The receiver asks the provider at once. The
// tests count its calls, and check when the worker asks if the provider does not decide.
func TestEventSettlesAtOnce(t *testing.T) {
	s := newMemoryShop(t)
	calls := func() string { return fmt.Sprintf("%d/%d", s.mem.count("retrieve"), s.mem.count("expire")) }
	wantCalls := func(t *testing.T, want string) {
		t.Helper()
		if got := calls(); got != want {
			t.Errorf("calls of retrieve/expire: %s, want %s", got, want)
		}
	}
	// wantTask checks that the settle task of an order is owed, due in a time, and that it comes then.
	wantTask := func(t *testing.T, o *order.Order, want time.Duration) {
		t.Helper()
		if left := s.owedIn(t, o.ID); !about(left, want) {
			t.Errorf("the task is owed in %v, want in %v", left, want)
		}
		if left, again := s.settle(t, o.ID); !again || !about(left, want) {
			t.Errorf("the task is due again in %v, %v; want in %v", left, again, want)
		}
	}
	for name, test := range map[string]func(t *testing.T, o *order.Order, a *attempt.Attempt){
		"paid": func(t *testing.T, o *order.Order, a *attempt.Attempt) {
			s.pay(t, a.CheckoutURL)
			s.tell(t, a)
			s.wantOrder(t, o, "paid")
			wantCalls(t, "1/0")
			n := testenv.Query[int](t, s.db, `SELECT count(*) FROM outbox WHERE kind = $1 AND task_id = $2`, attempt.Kind, a.ID.String())
			if _, again := s.settle(t, o.ID); again || n != 0 {
				t.Errorf("%d tasks are owed, and one is due again: %v; want none", n, again)
			}
			wantCalls(t, "1/0")
		},
		"not paid: once more soon, then rarely": func(t *testing.T, o *order.Order, a *attempt.Attempt) {
			s.tell(t, a)
			wantTask(t, o, 6*time.Second)
			wantCalls(t, "1/0")
			s.shift(t, o.ID, 7*time.Second)
			if left, again := s.settle(t, o.ID); !again || left < 4*time.Minute {
				t.Errorf("the task is due again in %v, %v; want in about five minutes", left, again)
			}
			wantCalls(t, "2/0")
			s.wantAttempt(t, o, a.ID, "open")
		},
		"no answer: soon": func(t *testing.T, o *order.Order, a *attempt.Attempt) {
			s.mem.fail("", failed(provider.Denied, ""))
			defer s.mem.fail("", nil)
			s.tell(t, a)
			wantTask(t, o, 6*time.Second)
			for range 2 {
				s.shift(t, o.ID, 21*time.Second)
				if left, again := s.settle(t, o.ID); !again || left < 9*time.Second || left > 20*time.Second {
					t.Errorf("the check is due again in %v, %v; want in 10 s to 20 s", left, again)
				}
			}
		},
		"closing and paid: one call": func(t *testing.T, o *order.Order, a *attempt.Attempt) {
			s.pay(t, a.CheckoutURL)
			s.shiftToDeadline(t, o.ID, time.Second)
			s.tell(t, a)
			s.wantOrder(t, o, "paid")
			wantCalls(t, "1/0")
		},
		"closing and not paid: the worker expires it": func(t *testing.T, o *order.Order, a *attempt.Attempt) {
			s.shiftToDeadline(t, o.ID, time.Second)
			s.tell(t, a)
			s.wantAttempt(t, o, a.ID, "open closing")
			s.settle(t, o.ID)
			s.wantAttempt(t, o, a.ID, "closed")
			wantCalls(t, "1/1")
			s.cancelDue(t, o.ID)
		},
		"an event delays no check": func(t *testing.T, o *order.Order, a *attempt.Attempt) {
			s.mem.fail("", failed(provider.Denied, ""))
			s.shiftToDeadline(t, o.ID, time.Second)
			s.settle(t, o.ID) // in two seconds again
			s.exec(t, `DELETE FROM outbox`)
			s.tell(t, a)
			wantTask(t, o, 2*time.Second)
			s.mem.fail("", nil)
			s.settleNow(t, o.ID)
			s.cancelDue(t, o.ID)
		},
		"paid and repeated: no call": func(t *testing.T, o *order.Order, a *attempt.Attempt) {
			s.pay(t, a.CheckoutURL)
			s.tell(t, a)
			s.tell(t, a)
			wantCalls(t, "1/0")
		},
	} {
		t.Run(name, func(t *testing.T) {
			o, a := s.placeOpen(t)
			s.settles.Take()
			s.mem.set(func() { s.mem.calls = map[string]int{} })
			test(t, o, a)
		})
	}
	s.check(t)
}

// TestEventsDoNotWaitForPolls has a provider that does not answer the polls of unpaid checkouts, which take all slots
// of the workers. Customers who have paid must not wait for the polls.
func TestEventsDoNotWaitForPolls(t *testing.T) {
	t.Parallel()
	s := newMemoryShop(t)
	const loops = 2 // of a worker
	var polls []delay.Task
	for range loops * check.BatchSize {
		_, a := s.placeOpen(t)
		polls = append(polls, delay.Task{ID: a.ID.String()})
	}
	s.exec(t, `UPDATE payment_attempts SET next_check = now()`)
	var workers sync.WaitGroup
	answer := make(chan struct{})
	end := sync.OnceFunc(func() {
		close(answer)
		workers.Wait()
	})
	defer end()
	s.mem.hook("retrieve", memoryHook{before: func() error { <-answer; return nil }})
	for batch := range slices.Chunk(polls, check.BatchSize) {
		workers.Go(func() {
			if _, err := s.Attempts().Handle(t.Context(), batch); err != nil {
				t.Error(err)
			}
		})
	}
	testenv.Eventually(t, "polls in all slots", func() bool { return s.mem.count("retrieve") == loops*check.BatchSize })
	s.mem.hook("retrieve", memoryHook{})
	for range check.BatchSize {
		o, a := s.placeOpen(t)
		s.pay(t, a.CheckoutURL)
		s.tell(t, a)
		s.wantOrder(t, o, "paid")
	}
	end()
	s.check(t)
}
