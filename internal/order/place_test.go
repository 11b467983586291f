package order_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// TestPlace places an order, and looks for all that is written and published with it. TestPlacedOrder compares its
// fields.
func TestPlace(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer, a, b := s.Customer(t), s.Product(t, 10), s.Product(t, 5)

	o := s.MustPlace(t, customer, line(a, 3), line(b, 5))

	if s.Available(t, a) != 7 || s.Available(t, b) != 0 {
		t.Errorf("%d and %d available, want 7 and 0", s.Available(t, a), s.Available(t, b))
	}
	if !testenv.Query[bool](t, s.DB, `SELECT due_at = $2 FROM outbox WHERE kind = $1 AND task_id = $3`,
		order.CancelKind, o.ExpiresAt, o.ID) {
		t.Error("the outbox row is not due at the deadline of the order")
	}
	tasks := s.awaitPublished(t)
	if len(tasks) != 1 || tasks[0].ID != o.ID.String() || !ordertest.Near(tasks[0].Left(), timeout) {
		t.Errorf("the tasks %v are published, want that of order %s, due in about %v", tasks, o.ID, timeout)
	}
	got, err := s.Get(t.Context(), customer, o.ID)
	if err != nil || seen(got) != seen(o) {
		t.Errorf("Get returns %+v, %v; want the placed order %+v", got, err, o)
	}
	events, err := s.Events(t.Context(), customer, o.ID)
	if err != nil || !slices.Equal(events, []order.Event{{Type: "placed", Actor: order.Customer, At: o.CreatedAt}}) {
		t.Errorf("Events returns %v, %v; want one event, placed by the customer at %v", events, err, o.CreatedAt)
	}
	s.CheckInvariants(t, 0)
}

// TestPlaceRejected places a batch with one good order. Of the rejected ones nothing is written or published.
func TestPlaceRejected(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer, plenty, few := s.Customer(t), s.Product(t, 9), s.Product(t, 2)
	dollars := s.ProductWithCurrency(t, 9, "USD")
	results := s.placeInOneBatch(t,
		wantsWithKey(customer, "a", line(plenty, 1), line(uuid.New(), 1)),
		wantsWithKey(customer, "b", line(plenty, 1), line(dollars, 1)),
		wantsWithKey(customer, "c", line(plenty, 1), line(few, 3)),
		wants(customer, line(plenty, 1001)),
		wants(customer, line(plenty, 1), line(few, 1)))
	if got, want := fmt.Sprint(results),
		"[unknown-product mixed-currencies out-of-stock invalid-request placed]"; got != want {
		t.Fatalf("answers are %s, want %s", got, want)
	}
	rows := testenv.Query[string](t, s.DB, `SELECT concat_ws(' ', (SELECT count(*) FROM orders),
		(SELECT count(*) FROM order_items), (SELECT count(*) FROM outbox), (SELECT count(*) FROM order_events))`)
	if rows != "1 2 1 0" {
		t.Errorf("orders, items, outbox rows and events are %s, want those of one order", rows)
	}
	if tasks := s.awaitPublished(t); len(tasks) != 1 || s.Available(t, plenty) != 8 || s.Available(t, few) != 1 {
		t.Errorf("the tasks %v are published, %d and %d units are available; want one task, and 8 and 1", tasks,
			s.Available(t, plenty), s.Available(t, few))
	}
	s.CheckInvariants(t, 0)
}

// TestParallelPlacementsDoNotOversell has more customers order a product than there are units of it.
func TestParallelPlacementsDoNotOversell(t *testing.T) {
	s := newShop(t)
	product := s.Product(t, 30)
	var sold, rejected atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		customer := s.Customer(t)
		wg.Go(func() {
			switch err := s.try(t, customer, line(product, 1)); {
			case err == nil:
				sold.Add(1)
			case parttest.ClassOf(err) == order.OutOfStock:
				rejected.Add(1)
			}
		})
	}
	wg.Wait()
	if sold.Load() != 30 || rejected.Load() != 20 || s.Available(t, product) != 0 {
		t.Errorf("%d placements succeeded, %d were rejected, %d units available; want 30, 20 and 0",
			sold.Load(), rejected.Load(), s.Available(t, product))
	}
	s.CheckInvariants(t, 0)
}

// TestProductChangesDuringLockWait has a customer wait for a product that is sold out when the request begins. The
// holder of its lock adds stock, and changes the price.
func TestProductChangesDuringLockWait(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer, product := s.Customer(t), s.Product(t, 1)
	s.Do(t, "pay", customer, s.MustPlace(t, customer, line(product, 1)).ID)
	release := testenv.HoldLock(t, s.DB,
		`UPDATE products SET available = 3, supply = 4, price_cents = 250 WHERE id = $1`, product)
	placed := async(func() error { return s.try(t, customer, line(product, 2)) })
	testenv.AwaitLockWait(t, s.DB)
	release()
	if err := <-placed; err != nil {
		t.Errorf("Place returns %v, want an order", err)
	}
	total := testenv.Query[int64](t, s.DB,
		`SELECT coalesce(sum(total_cents), 0)::bigint FROM orders WHERE status = 'pending'`)
	if total != 500 || s.Available(t, product) != 1 {
		t.Errorf("the total is %d cents, %d are available; want 500 and 1", total, s.Available(t, product))
	}
	s.CheckInvariants(t, 0)
}
