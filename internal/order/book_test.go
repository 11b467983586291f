package order_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/testenv"
)

// book books all ended orders, and fails the test if their number is not the expected one.
func (s *shop) book(t testing.TB, want int64) {
	t.Helper()
	if n, err := s.Store.Book(t.Context()); n != want || err != nil {
		t.Fatalf("Book returns %d, %v; want %d", n, err, want)
	}
}

// bookAll books until all ended orders are booked. The session of an interrupted booking may still have their locks.
func (s *shop) bookAll(t testing.TB) {
	t.Helper()
	testenv.Eventually(t, "all ended orders are booked", func() bool {
		_, err := s.Store.Book(t.Context())
		testenv.Must(t, err)
		return testenv.Query[int](t, s.DB, `SELECT count(*) FROM orders WHERE NOT booked AND status <> 'pending'`) == 0
	})
}

// wantSold checks how many units of a product the books say are sold.
func (s *shop) wantSold(t testing.TB, product uuid.UUID, want int64) {
	t.Helper()
	sold := testenv.Query[int64](t, s.DB,
		`SELECT coalesce(sum(sold), 0)::bigint FROM stock_books WHERE product_id = $1`, product)
	if sold != want {
		t.Errorf("the books say that %d are sold, want %d", sold, want)
	}
}

// endedOrders places 2 units in each of four orders. Two are paid, one is cancelled, and one stays pending.
func (s *shop) endedOrders(t testing.TB) (customer, product uuid.UUID) {
	t.Helper()
	customer, product = s.Customer(t), s.Product(t, 10)
	for _, step := range []string{"pay", "pay", "cancel"} {
		s.Do(t, step, customer, s.MustPlace(t, customer, line(product, 2)).ID)
	}
	s.MustPlace(t, customer, line(product, 2))
	return customer, product
}

// TestBook books orders of each status, twice: they are more than a batch has.
func TestBook(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.PendingOrders(t, s.Customer(t), 501)
	s.Exec(t, `UPDATE orders SET status = 'paid', paid_at = created_at, ended_by = 'customer'`)
	_, product := s.endedOrders(t)
	s.book(t, 504)
	s.wantSold(t, product, 4)
	s.book(t, 0)
	s.wantSold(t, product, 4)
	s.CheckInvariants(t, 0)
}

// TestBookAfterLateCommit has a transaction end an order before a run of the booker, and commit after it. The order
// was placed and paid before the orders that this run books.
func TestBookAfterLateCommit(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	product := s.Product(t, 1)
	late := s.MustPlace(t, s.Customer(t), line(product, 1)).ID
	s.endedOrders(t)
	commit := testenv.HoldLock(t, s.DB,
		`UPDATE orders SET status = 'paid', paid_at = created_at, ended_by = 'customer' WHERE id = $1`, late)
	s.book(t, 3)
	s.CheckInvariants(t, 0)
	commit()
	s.CheckInvariants(t, 0)
	s.book(t, 1)
	s.wantSold(t, product, 1)
	s.CheckInvariants(t, 0)
}

// TestBookSkipsLockedOrders has another session lock an ended order, as a customer's request does.
func TestBookSkipsLockedOrders(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.endedOrders(t)
	unlock := testenv.HoldLock(t, s.DB,
		`SELECT FROM orders WHERE id = (SELECT id FROM orders WHERE status = 'paid' LIMIT 1) FOR UPDATE`)
	s.book(t, 2)
	s.CheckInvariants(t, 0)
	unlock()
	s.book(t, 1)
	s.CheckInvariants(t, 0)
}

// TestInterruptedBooking ends a booking while it waits for the books: its session dies, or its context ends. Nothing is
// booked then, and the next run books all.
func TestInterruptedBooking(t *testing.T) {
	t.Parallel()
	for name, interrupt := range map[string]func(t *testing.T, s *shop, stop func()){
		"session killed": func(t *testing.T, s *shop, _ func()) {
			s.Exec(t,
				`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
					AND wait_event_type = 'Lock'`)
		},
		"context ended": func(_ *testing.T, _ *shop, stop func()) { stop() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			customer, product := s.endedOrders(t)
			s.book(t, 3)
			id := s.MustPlace(t, customer, line(product, 1)).ID
			s.Do(t, "pay", customer, id)

			unlock := testenv.HoldLock(t, s.DB, `SELECT FROM stock_books FOR UPDATE`)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			done := async(func() error { _, err := s.Store.Book(ctx); return err })
			testenv.AwaitLockWait(t, s.DB)
			interrupt(t, s, stop)
			select {
			case err := <-done:
				if err == nil {
					t.Error("the interrupted booking returns no error")
				}
			case <-time.After(10 * time.Second): // it ends after milliseconds
				t.Fatal("the interrupted booking does not end")
			}
			s.CheckInvariants(t, 0)
			unlock()
			s.bookAll(t)
			s.CheckInvariants(t, 0)
		})
	}
}

// TestBookDuringRestore books in a database whose constraints are not restored yet. The books' rows may still be
// missing, so nothing may be booked.
func TestBookDuringRestore(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.endedOrders(t)
	s.Exec(t, `ALTER TABLE stock_books DROP CONSTRAINT stock_books_pkey`)
	if n, err := s.Store.Book(t.Context()); n != 0 || err == nil {
		t.Errorf("without the primary key of the books Book returns %d, %v; want an error", n, err)
	}
	s.Exec(t, `ALTER TABLE stock_books ADD PRIMARY KEY (product_id)`)
	s.book(t, 3)
	s.CheckInvariants(t, 0)
}

// TestBookDuringLoad books with two bookers, some of whose contexts end at random, while customers place, pay and
// cancel orders and a worker times orders out. The invariants hold in each snapshot.
func TestBookDuringLoad(t *testing.T) {
	t.Parallel()
	rounds := testenv.Rounds(15, 60)
	s := newShop(t)
	products := []uuid.UUID{s.Product(t, 1_000_000), s.Product(t, 1_000_000), s.Product(t, 1_000_000)}
	var load, rest sync.WaitGroup
	for range 4 {
		load.Go(func() {
			customer := s.Customer(t)
			for i := range rounds {
				id := s.MustPlace(t, customer, line(products[i%3], 1+int64(i%4)), line(products[(i+1)%3], 2)).ID
				switch rand.IntN(4) {
				case 0:
					s.Do(t, "cancel", customer, id)
				case 1:
					s.Do(t, "pass 31m", customer, id)
					// A delivery that waits too long for a product is repeated, as the worker does.
					testenv.Eventually(t, "the order is timed out", func() bool {
						s.Deliver(t, id)
						return s.Status(t, id) != "pending"
					})
				case 2, 3:
					s.Do(t, "pay", customer, id)
				}
			}
		})
	}
	over, end := context.WithCancel(t.Context())
	for range 2 {
		rest.Go(func() {
			for over.Err() == nil {
				limit := time.Minute
				if rand.IntN(16) == 0 { // rarely, because the pool then makes a new connection
					limit = time.Duration(rand.IntN(10)) * time.Millisecond
				}
				ctx, stop := context.WithTimeout(over, limit)
				_, _ = s.Store.Book(ctx)
				stop()
			}
		})
	}
	rest.Go(func() {
		for over.Err() == nil {
			s.CheckInvariants(t, time.Hour)
		}
	})
	load.Wait()
	end()
	rest.Wait()
	s.bookAll(t)
	s.CheckInvariants(t, 0)
}

// TestAuditFindsWrongBooks changes the books or the booked orders by hand. The invariants read no booked order, so
// only the full check finds what does not change the supply.
func TestAuditFindsWrongBooks(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		damage       string
		checks, full bool // whether the check finds it
	}{
		"none":                   {`SELECT 1`, false, false},
		"a unit too few is sold": {`UPDATE stock_books SET sold = sold - 1`, true, true},
		"the product has no row": {`DELETE FROM stock_books`, true, true},
		"a unit is available and not sold": {`WITH b AS (UPDATE stock_books SET sold = sold - 1) UPDATE products
			SET available = available + 1`, false, true},
		"a booked order is marked again": {`UPDATE orders SET booked = false WHERE status = 'paid'`, true, true},
		"an order is marked and not booked": {`UPDATE orders
			SET status = 'paid', paid_at = created_at, ended_by = 'customer', booked = true
			WHERE status = 'pending'`, true, true},
		"a booked order loses its items": {`DELETE FROM order_items WHERE order_id IN (SELECT id FROM orders
			WHERE status = 'paid')`, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newShop(t)
			s.endedOrders(t)
			s.book(t, 3)
			s.Exec(t, test.damage)
			for full, want := range map[bool]bool{false: test.checks, true: test.full} {
				violations, err := s.Store.Invariants(t.Context(), time.Hour, full)
				if err != nil || len(violations) > 0 != want {
					t.Errorf("the check (full: %v) finds %v, %v; want some: %v", full, violations, err, want)
				}
			}
		})
	}
}
