package order_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/gorm"

	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
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

// endedOrders places 2 units in each of four orders, and extends them. Two are paid, one is cancelled, and one stays
// pending.
func (s *shop) endedOrders(t testing.TB) (customer, product uuid.UUID) {
	t.Helper()
	customer, product = s.Customer(t), s.Product(t, 10)
	for _, steps := range []string{"extend, pay", "extend, pay", "extend, cancel", "extend"} {
		s.Do(t, steps, customer, s.place(t, customer, line(product, 2)).ID)
	}
	return customer, product
}

// paidOrders inserts n paid orders into an empty table of orders.
func (s *shop) paidOrders(t testing.TB, n int) {
	t.Helper()
	s.PendingOrders(t, s.InsertCustomer(t), n)
	s.Exec(t, `UPDATE orders SET status = 'paid', paid_at = created_at, ended_by = 'customer'`)
}

// TestBook books orders of each status, twice.
func TestBook(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	_, product := s.endedOrders(t)
	s.book(t, 3)
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
	late := s.place(t, s.Customer(t), line(product, 1)).ID
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
			id := s.place(t, customer, line(product, 1)).ID
			s.Do(t, "pay", customer, id)

			unlock := testenv.HoldLock(t, s.DB, `SELECT FROM stock_books FOR UPDATE`)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			done := make(chan error, 1)
			go func() {
				_, err := s.Store.Book(ctx)
				done <- err
			}()
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
				id := s.place(t, customer, line(products[i%3], 1+int64(i%4)), line(products[(i+1)%3], 2)).ID
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

// TestBookAgain corrects wrong books as the runbook says. One of the two paid orders is removed, so only the books
// know what it sold.
func TestBookAgain(t *testing.T) {
	t.Parallel()
	other := &dependent{}
	s := newShop(t, with(other))
	_, product := s.endedOrders(t)
	s.book(t, 3)
	other.owed = testenv.QueryAll[uuid.UUID](t, s.DB, `SELECT id FROM orders WHERE status = 'paid' LIMIT 1`)
	s.remove(t, time.Microsecond, 2)
	s.Exec(t, `UPDATE stock_books SET sold = 9`)
	s.Exec(t, `DELETE FROM stock_books WHERE removed = 0`)
	s.Exec(t, `UPDATE stock_books SET sold = removed`)
	s.Exec(t, `UPDATE orders SET booked = false WHERE booked`)
	s.CheckInvariants(t, 0)
	s.book(t, 1)
	s.wantSold(t, product, 4)
	s.CheckInvariants(t, 0)
}

// TestBookingMetrics looks at the oldest order that is not booked before and after a booking.
func TestBookingMetrics(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.endedOrders(t)
	s.Exec(t, `UPDATE orders SET paid_at = created_at - interval '1 min' WHERE status = 'paid'`)
	reg := prometheus.NewRegistry()
	reg.MustRegister(order.NewBookingGauge(s.Store))
	if age := parttest.Gauge(t, reg, "orders_not_booked_oldest_seconds"); age < 60 {
		t.Errorf("the oldest order that is not booked ended %v s ago, want at least 60", age)
	}
	if err := s.Store.CheckBooking(t.Context()); err == nil {
		t.Error("the doctor does not report orders that ended over a minute ago")
	}
	booked, err := s.Store.Book(t.Context())
	testenv.Must(t, err)
	if age := parttest.Gauge(t, reg, "orders_not_booked_oldest_seconds"); booked != 3 || age != 0 {
		t.Errorf("a booking books %v orders, and the oldest that is not booked ended %v s ago; want 3 and 0", booked,
			age)
	}
	if err := s.Store.CheckBooking(t.Context()); err != nil {
		t.Errorf("the doctor reports %v, want nothing", err)
	}
}

// remove removes the orders that ended longer ago than keep, and fails the test if their number is not the expected
// one.
func (s *shop) remove(t testing.TB, keep time.Duration, want int64) {
	t.Helper()
	if n, err := s.RemoveOld(t.Context(), keep); n != want || err != nil {
		t.Fatalf("RemoveOld returns %d, %v; want %d", n, err, want)
	}
}

// wantRows checks how many orders, items and events there are.
func (s *shop) wantRows(t testing.TB, want [3]int) {
	t.Helper()
	var got [3]int
	for i, table := range []string{"orders", "order_items", "order_events"} {
		got[i] = testenv.Query[int](t, s.DB, `SELECT count(*) FROM `+table)
	}
	if got != want {
		t.Errorf("there are %v orders, items and events, want %v", got, want)
	}
}

// with makes a shop have a package whose rows refer to its orders.
func with(d *dependent) func(*order.Config) {
	return func(c *order.Config) { c.Dependents = append(c.Dependents, d) }
}

// dependent is a package whose rows refer to orders. It records its calls.
type dependent struct {
	owed, asked, removed []uuid.UUID
}

func (d *dependent) Owed(_ *gorm.DB, ids []uuid.UUID) ([]uuid.UUID, error) {
	d.asked = append(d.asked, ids...)
	return d.owed, nil
}

func (d *dependent) Remove(_ *gorm.DB, ids []uuid.UUID) error {
	d.removed = append(d.removed, ids...)
	return nil
}

// OrderOf finds the first order of which something is owed, by the id "other".
func (d *dependent) OrderOf(_ *gorm.DB, id string) (uuid.UUID, bool, error) {
	if id != "other" {
		return uuid.Nil, false, nil
	}
	return d.owed[0], true, nil
}

// TestRemove removes old orders. Those that are pending, not booked or too young stay, and so does one that another
// package keeps or another session has locked.
func TestRemove(t *testing.T) {
	t.Parallel()
	other := &dependent{}
	s := newShop(t, with(other))
	customer, product := s.endedOrders(t)
	s.remove(t, time.Microsecond, 0) // none is booked
	s.book(t, 3)
	s.remove(t, time.Hour, 0)
	s.wantRows(t, [3]int{4, 4, 4})

	paid := testenv.Query[uuid.UUID](t, s.DB, `SELECT id FROM orders WHERE status = 'paid' ORDER BY id LIMIT 1`)
	other.owed = []uuid.UUID{paid}
	ended := testenv.QueryAll[string](t, s.DB,
		`SELECT id::text FROM orders WHERE booked AND status <> 'pending' ORDER BY id`)
	s.remove(t, time.Microsecond, 2)
	for name, ids := range map[string][]uuid.UUID{"asked": other.asked, "told to remove": other.removed} {
		want := ended
		if name == "told to remove" {
			want = ended[1:]
		}
		if got := fmt.Sprint(ids); got != fmt.Sprint(want) {
			t.Errorf("the other package was %s: orders %s, want %v", name, got, want)
		}
	}
	s.wantRows(t, [3]int{2, 2, 2})
	s.CheckInvariants(t, 0)

	other.owed = nil
	unlock := testenv.HoldLock(t, s.DB, `SELECT FROM orders WHERE id = $1 FOR UPDATE`, paid)
	s.remove(t, time.Microsecond, 0)
	unlock()
	s.remove(t, time.Microsecond, 1)
	s.wantRows(t, [3]int{1, 1, 1})
	s.wantSold(t, product, 4)
	s.CheckInvariants(t, 0)

	// The books go on: what is sold later adds to them.
	s.Do(t, "pay", customer, s.place(t, customer, line(product, 2)).ID)
	s.book(t, 1)
	s.wantSold(t, product, 6)
	s.CheckInvariants(t, 0)
}

// TestArchiveOrders runs the statements of the document that archive old orders. They return the ended orders, each
// with its items, and their audit trails.
func TestArchiveOrders(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	_, product := s.endedOrders(t)
	const document = "../../docs/production.md"
	for i, rows := range parttest.Copied(t, s.URL, document, "2000-01-01") {
		if len(rows) > 0 {
			t.Errorf("statement %d returns %d rows of orders that ended before the year 2000, want none", i+1,
				len(rows))
		}
	}
	archived := parttest.Copied(t, s.URL, document, "9999-12-31")
	if len(archived) != 2 {
		t.Fatalf("the document has %d statements, want one for the orders and one for their trails", len(archived))
	}
	ended := testenv.QueryAll[string](t, s.DB, `SELECT id::text FROM orders WHERE status <> 'pending' ORDER BY id`)
	var orders []string
	for _, o := range archived[0] {
		orders = append(orders, o["id"])
		var items []struct {
			ProductID uuid.UUID `json:"product_id"`
			Quantity  int64     `json:"quantity"`
		}
		testenv.Must(t, json.Unmarshal([]byte(o["items"]), &items))
		if len(items) != 1 || items[0].ProductID != product || items[0].Quantity != 2 || o["total_cents"] != "200" {
			t.Errorf("the order %v is archived with the items %+v, want two units of %s for 200", o, items, product)
		}
	}
	if !slices.Equal(orders, ended) {
		t.Errorf("the orders %v are archived, want %v", orders, ended)
	}
	trails := map[string]string{}
	for _, entry := range archived[1] {
		trails[entry["order_id"]] += " " + entry["type"]
	}
	for i, id := range ended {
		want := []string{" placed rescheduled paid", " placed rescheduled paid", " placed rescheduled cancelled"}[i]
		if trails[id] != want {
			t.Errorf("the trail of the order %s is archived as%s, want%s", id, trails[id], want)
		}
	}
	if len(trails) != len(ended) {
		t.Errorf("the trails of %d orders are archived, want %d", len(trails), len(ended))
	}
}

// TestRemoveCrash interrupts a removal before each of its statements. A batch is removed as a whole, or not at all.
func TestRemoveCrash(t *testing.T) {
	t.Parallel()
	s := newShop(t, with(&dependent{}))
	_, product := s.endedOrders(t)
	s.book(t, 3)
	all, left := [3]int{4, 4, 4}, [3]int{1, 1, 1}
	crashes := 0
	ordertest.CrashEach(t, s.Gorm, s.DB, func() error {
		_, err := s.RemoveOld(t.Context(), time.Microsecond)
		return err
	}, func() {
		crashes++
		if testenv.Query[int](t, s.DB, `SELECT count(*) FROM orders`) == 1 {
			all = left // of the batch that found no more orders
		}
		s.wantRows(t, all)
		s.CheckInvariants(t, 0)
	})
	if crashes < 2 {
		t.Errorf("the removal was interrupted %d times, want at least before the lock and before the deletion", crashes)
	}
	s.wantRows(t, left)
	s.wantSold(t, product, 4)
	s.CheckInvariants(t, 0)
}

// TestRemoveInBatches removes more orders than fit into one batch, while two removers and a booker run.
func TestRemoveInBatches(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.paidOrders(t, 1_200)
	errs := make(chan error, 3)
	go func() {
		_, err := s.Store.Book(t.Context())
		errs <- err
	}()
	for range 2 {
		go func() {
			_, err := s.RemoveOld(t.Context(), time.Microsecond)
			errs <- err
		}()
	}
	for range 3 {
		testenv.Must(t, <-errs)
	}
	s.CheckInvariants(t, 0)
	s.remove(t, time.Microsecond, testenv.Query[int64](t, s.DB, `SELECT count(*) FROM orders`))
	s.wantRows(t, [3]int{})
	s.CheckInvariants(t, 0)
}
