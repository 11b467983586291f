package payment_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/payments/internal/attempt"
)

// TestStatementsFollowMovedOrders checks statements that wait for the lock of an order while another session moves its
// times. PostgreSQL first computes a new row from the snapshot, which has the old times, and checks its constraints.
func TestStatementsFollowMovedOrders(t *testing.T) {
	s := newMemoryShop(t)
	const (
		later  = `UPDATE orders SET expires_at = expires_at + interval '1 hour', hold_until = hold_until + interval '1 hour' WHERE id = $1`
		sooner = `UPDATE orders SET expires_at = created_at + interval '1 s', hold_until = created_at + interval '2 s' WHERE id = $1`
	)
	open := func(o *order.Order) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			_, _, err := s.Open(ctx, o.CustomerID, o.ID)
			return err
		}
	}
	settle := func(o *order.Order) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			_, err := s.Attempts().Handle(ctx, []delay.Task{{ID: s.tasks(t, o.ID)[0]}})
			return err
		}
	}
	for name, test := range map[string]struct {
		prepare func(*testing.T) (*order.Order, func(context.Context) error) // returns what waits for the lock
		moves   string
		rejects rest.Class
		want    string // the order afterwards
	}{
		"open, and the deadline moves behind now": {func(t *testing.T) (*order.Order, func(context.Context) error) {
			o := s.place(t)
			s.shift(t, o.ID, time.Minute)
			return o, open(o)
		}, `UPDATE orders SET expires_at = created_at + interval '1 s' WHERE id = $1`, order.DeadlinePassed, "pending"},
		"open, and the deadline moves": {func(t *testing.T) (*order.Order, func(context.Context) error) {
			o := s.place(t)
			s.shiftToDeadline(t, o.ID, time.Second)
			return o, open(o)
		}, later, rest.Class{}, "pending held"},
		"a success, and the hold is extended": {func(t *testing.T) (*order.Order, func(context.Context) error) {
			o, a := s.placeOpen(t)
			s.pay(t, a.CheckoutURL)
			s.shiftToDeadline(t, o.ID, grace+time.Second)
			s.beginClosing(t, o)
			return o, settle(o)
		}, later, rest.Class{}, "paid"},
		"a success, and the hold ends": {func(t *testing.T) (*order.Order, func(context.Context) error) {
			o, a := s.placeOpen(t)
			s.pay(t, a.CheckoutURL)
			s.shift(t, o.ID, time.Minute)
			return o, settle(o)
		}, sooner, rest.Class{}, "pending"},
		"a success, and the order is cancelled": {func(t *testing.T) (*order.Order, func(context.Context) error) {
			o, a := s.placeOpen(t)
			s.pay(t, a.CheckoutURL)
			s.shiftToDeadline(t, o.ID, grace+time.Second)
			s.beginClosing(t, o)
			return o, settle(o)
		}, `WITH stock AS (UPDATE products SET available = available + 1)
			UPDATE orders SET status = 'cancelled', cancelled_at = now(), cancel_reason = 'timeout', ended_by = 'worker' WHERE id = $1`,
			rest.Class{}, "cancelled timeout"},
		"a close, and the deadline moves": {func(t *testing.T) (*order.Order, func(context.Context) error) {
			o, _ := s.placeOpen(t)
			s.shiftToDeadline(t, o.ID, time.Second)
			s.beginClosing(t, o)
			return o, settle(o)
		}, later, rest.Class{}, "pending"},
		"a close, and the deadline moves to an earlier time": {func(t *testing.T) (*order.Order, func(context.Context) error) {
			o, a := s.placeOpen(t)
			s.shift(t, o.ID, time.Minute)
			s.expireSession(t, a.ID)
			return o, settle(o)
		}, sooner, rest.Class{}, "pending"},
	} {
		t.Run(name, func(t *testing.T) {
			o, wait := test.prepare(t)
			release := testenv.HoldLock(t, s.db, test.moves, o.ID)
			ended := make(chan error, 1)
			go func() { ended <- wait(context.WithoutCancel(t.Context())) }()
			testenv.AwaitLockWait(t, s.db)
			release()
			if err := <-ended; parttest.ClassOf(err) != test.rejects {
				t.Fatalf("the statement returns %v, want class %q", err, test.rejects.Code)
			}
			s.wantOrder(t, o, test.want)
			s.settleAll(t, o)
		})
	}
	s.check(t)
}

// beginClosing makes the attempt of an order due, because its closing begins.
func (s *shop) beginClosing(t testing.TB, o *order.Order) {
	t.Helper()
	s.exec(t, `UPDATE payment_attempts SET next_check = now() WHERE order_id = $1`, o.ID)
}

// settleAll lets the time of orders end, and settles everything. The provider must work.
func (s *shop) settleAll(t *testing.T, orders ...*order.Order) {
	t.Helper()
	for _, o := range orders {
		s.shift(t, o.ID, 24*time.Hour)
		s.settleNow(t, o.ID)
		s.cancelDue(t, o.ID)
	}
	page, _, err := s.Refunds().Pending(t.Context(), keyset.Cursor{}, aYear, 1000)
	testenv.Must(t, err)
	for _, m := range page {
		s.exec(t, `UPDATE refunds SET next_check = now() WHERE id = $1`, m.ID)
		handle(t, s.Refunds().Handle, m.ID)
	}
}

// TestConcurrentSteps applies random steps to a few orders from several goroutines. It checks that no step fails for a
// reason that the API does not know, that PostgreSQL never had to resolve a deadlock, and the outcome.
func TestConcurrentSteps(t *testing.T) {
	s := newMemoryShop(t)
	orders := []*order.Order{s.place(t), s.place(t), s.place(t), s.place(t)}
	var urls sync.Map
	var deliveries []event
	var mu sync.Mutex // guards deliveries
	allow := func(err error) {
		if class := parttest.ClassOf(err); err != nil && class.Status != 409 && class != attempt.ProviderAway && class != attempt.CheckoutRefused {
			t.Error(err)
		}
	}
	ctx := t.Context()
	steps := []func(*order.Order){
		func(o *order.Order) {
			a, _, err := s.Open(ctx, o.CustomerID, o.ID)
			if allow(err); err == nil && a.CheckoutURL != "" {
				urls.Store(a.CheckoutURL, o.ID)
			}
		},
		func(o *order.Order) {
			urls.Range(func(url, of any) bool {
				if of == o.ID {
					s.pay(t, url.(string))
				}
				return rand.N(2) == 0
			})
		},
		func(o *order.Order) { s.settleNow(t, o.ID) },
		func(o *order.Order) { s.settle(t, o.ID) },
		func(o *order.Order) { s.cancelDue(t, o.ID) },
		func(*order.Order) {
			handle(t, s.Attempts().Handle, s.tasks(t, orders[2].ID, orders[0].ID, orders[3].ID, orders[1].ID)...)
		},
		func(*order.Order) {
			handle(t, s.due.Handle, orders[3].ID.String(), orders[1].ID.String(), orders[0].ID.String())
		},
		func(o *order.Order) {
			_, err := s.orders.Extend(ctx, o.CustomerID, o.ID)
			allow(err)
		},
		func(o *order.Order) { _ = s.reschedule(t, o.ID, time.Hour) },
		func(o *order.Order) {
			attempts, err := s.OfOrder(ctx, o.CustomerID, o.ID)
			allow(err)
			for _, a := range attempts {
				mu.Lock()
				deliveries = append(deliveries, s.events(t, a.ID)...)
				mu.Unlock()
			}
		},
		func(*order.Order) {
			mu.Lock()
			all := deliveries
			mu.Unlock()
			if len(all) > 0 {
				s.deliver(t, all[rand.N(len(all))].body)
			}
		},
		func(o *order.Order) { // rare, because it ends most orders
			if rand.N(5) == 0 {
				allow(s.Close(ctx, o.CustomerID, o.ID))
				_, err := s.orders.Cancel(ctx, o.CustomerID, o.ID)
				allow(err)
			}
		},
		func(*order.Order) {
			page, _, err := s.Refunds().Pending(ctx, keyset.Cursor{}, aYear, 10)
			allow(err)
			for _, m := range page {
				handle(t, s.Refunds().Handle, m.ID)
			}
		},
	}
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for range 40 {
				steps[rand.N(len(steps))](orders[rand.N(len(orders))])
			}
		})
	}
	workers.Wait()
	s.resetBreaker(t)
	s.settleAll(t, orders...)
	for _, o := range orders {
		s.cancelDue(t, o.ID)
		if status := testenv.Query[string](t, s.db, `SELECT status FROM orders WHERE id = $1`, o.ID); status == "pending" {
			t.Errorf("order %s is pending, want it ended", o.ID)
		}
	}
	if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM (SELECT order_id FROM payment_attempts WHERE applied GROUP BY 1 HAVING count(*) > 1) AS twice`); n > 0 {
		t.Errorf("%d orders were paid twice", n)
	}
	s.check(t)
	if n := testenv.Query[int](t, s.db, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`); n > 0 {
		t.Errorf("PostgreSQL resolved %d deadlocks, want none", n)
	}
}

// TestPairsMeet has each two of those who end an attempt meet: its customer who closes it, a webhook, the worker's poll,
// the reconciler, the timeout of the order, and an operator who moves the deadline. The customer has paid in half of the
// cases. Each attempt ends once, and its money is where its order is.
func TestPairsMeet(t *testing.T) {
	s := newMemoryShop(t)
	ctx := t.Context()
	actions := map[string]func(o *order.Order, a *attempt.Attempt) error{
		"close": func(o *order.Order, _ *attempt.Attempt) error {
			if err := s.Close(ctx, o.CustomerID, o.ID); err != nil {
				return err
			}
			_, err := s.orders.Cancel(ctx, o.CustomerID, o.ID)
			return err
		},
		"webhook": func(_ *order.Order, a *attempt.Attempt) error { s.deliverAll(t, a.ID); return nil },
		"poll":    func(o *order.Order, _ *attempt.Attempt) error { s.settleNow(t, o.ID); return nil },
		"reconciler": func(o *order.Order, _ *attempt.Attempt) error {
			_, _, err := s.Attempts().TimeOut(ctx, s.tasks(t, o.ID))
			return err
		},
		"timeout":  func(o *order.Order, _ *attempt.Attempt) error { s.cancelDue(t, o.ID); return nil },
		"operator": func(o *order.Order, _ *attempt.Attempt) error { return s.reschedule(t, o.ID, 2*time.Hour) },
	}
	for first, do := range actions {
		for second, and := range actions {
			for _, paid := range []bool{true, false} {
				o, a := s.placeOpen(t)
				s.checkNow(t, o.ID)
				var both sync.WaitGroup
				for _, act := range []func(*order.Order, *attempt.Attempt) error{
					func(o *order.Order, a *attempt.Attempt) error {
						if paid {
							s.pay(t, a.CheckoutURL)
						}
						return do(o, a)
					}, and,
				} {
					both.Go(func() {
						if err := act(o, a); err != nil && parttest.ClassOf(err).Status != 409 {
							t.Errorf("%s and %s: %v", first, second, err)
						}
					})
				}
				both.Wait()
				s.shiftToDeadline(t, o.ID, time.Second)
				s.settleNow(t, o.ID)
				s.cancelDue(t, o.ID)
				if s.attempt(t, o, a.ID).State == attempt.Open || testenv.Query[string](t, s.db,
					`SELECT status FROM orders WHERE id = $1`, o.ID) == "pending" {
					t.Errorf("%s and %s, paid %v: the order, its attempts, events and tasks are %s, want them ended", first, second, paid, s.row(t, o))
				}
			}
		}
	}
	s.check(t)
	if n := testenv.Query[int](t, s.db, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`); n > 0 {
		t.Errorf("PostgreSQL resolved %d deadlocks, want none", n)
	}
}
