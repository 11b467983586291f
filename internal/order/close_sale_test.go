package order_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// TestCloseSale brings the deadlines of a product's orders forward, and leaves those of other orders.
func TestCloseSale(t *testing.T) {
	s := newShop(t)
	customer, product, other := s.customer(t), s.product(t, 10), s.product(t, 10)
	pending, both := s.place(t, customer, line(product, 1)), s.place(t, customer, line(other, 1), line(product, 1))
	held, foreign, soon := s.place(t, customer, line(product, 1)), s.place(t, customer, line(other, 1)), s.place(t, customer, line(product, 1))
	s.hold(t, held.ID)
	s.pass(t, soon.ID, timeout-30*time.Second)

	closed, err := s.CloseSale(t.Context(), product)
	if err != nil || closed.Orders != 3 {
		t.Fatalf("CloseSale returns %+v, %v; want 3 orders", closed, err)
	}
	for name, test := range map[string]struct {
		id   uuid.UUID
		left time.Duration // to the deadline
	}{
		"pending": {pending.ID, time.Minute}, "with another product": {both.ID, time.Minute}, "held": {held.ID, time.Minute},
		"of another product": {foreign.ID, timeout}, "with an early deadline": {soon.ID, 30 * time.Second},
	} {
		o, err := s.Get(t.Context(), customer, test.id)
		if err != nil || !near(o.ExpiresAt.Sub(o.ServerTime), test.left) {
			t.Errorf("the deadline of the order %s is %v, at %v, %v; want about %v left", name, o.ExpiresAt, o.ServerTime, err, test.left)
		}
		if moved := test.left == time.Minute; moved != o.ExpiresAt.Equal(closed.Deadline) || s.notified.Of(o.CustomerID, o.ID) != map[bool]int{false: 1, true: 2}[moved] {
			t.Errorf("the deadline of the order %s is %v, with %d notifications; want %v exactly if it is moved, and a notification then",
				name, o.ExpiresAt, s.notified.Of(o.CustomerID, o.ID), closed.Deadline)
		}
		if due := s.outboxLeft(t, order.CancelKind, test.id); name != "held" && name != "with an early deadline" && !near(due, test.left) {
			t.Errorf("the task of the order %s is due in %v, want about %v", name, due, test.left)
		}
	}
	// A held order is not cancelled before its hold ends. The task of the hold is due at the deadline.
	o, err := s.Get(t.Context(), customer, held.ID)
	if err != nil || o.HoldUntil.Sub(o.ExpiresAt) != holdTime || !o.DueAt.Equal(*o.HoldUntil) {
		t.Errorf("the held order is %+v, %v; want its hold to end %v after its deadline", o, err, holdTime)
	}
	if settle, cancel := s.outboxLeft(t, heldKind, held.ID), s.outboxLeft(t, order.CancelKind, held.ID); !near(settle, time.Minute) ||
		!near(cancel, time.Minute+holdTime) {
		t.Errorf("the task of the hold is due in %v and that of the cancellation in %v, want about %v and %v",
			settle, cancel, time.Minute, time.Minute+holdTime)
	}
	s.pass(t, held.ID, time.Minute)
	if left, ok := s.cancelDue(t, held.ID)[0].Retry(); !ok || !near(left, holdTime) {
		t.Errorf("at the new deadline the task of the held order is due again in %v (%v), want about %v", left, ok, holdTime)
	}

	if again, err := s.CloseSale(t.Context(), product); err != nil || again.Orders != 0 {
		t.Errorf("the second CloseSale returns %+v, %v; want no orders", again, err)
	}
	if _, err := s.CloseSale(t.Context(), uuid.New()); parttest.KindOf(err) != rest.NotFound {
		t.Errorf("CloseSale of an unknown product returns %v, want code %s", err, rest.NotFound.Code)
	}
	s.checkInvariants(t, 0)
}

// TestCloseSaleGivesAWholeMinute has CloseSale wait for the lock of an order.
func TestCloseSaleGivesAWholeMinute(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer, product := s.customer(t), s.product(t, 2)
	locked := s.place(t, customer, line(product, 1)).ID
	s.place(t, customer, line(product, 1))
	release := testenv.HoldLock(t, s.db, `SELECT FROM orders WHERE id = $1 FOR UPDATE`, locked)
	done := make(chan error, 1)
	go func() {
		_, err := s.CloseSale(t.Context(), product)
		done <- err
	}()
	testenv.AwaitLockWait(t, s.db)
	released := testenv.Query[time.Time](t, s.db, `SELECT clock_timestamp()`)
	release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if first := testenv.Query[time.Time](t, s.db, `SELECT min(expires_at) FROM orders`); first.Sub(released) < time.Minute {
		t.Errorf("a deadline is %v after the end of the wait, want at least a minute", first.Sub(released))
	}
}

// TestCloseSaleFindsReleasedOrder ends the hold of an order between two pages. The order's due time moves back, before
// the end of the first page.
func TestCloseSaleFindsReleasedOrder(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer := s.insertCustomer(t)
	ids := s.pendingOrders(t, customer, 600) // more than a page
	released := ids[0]
	s.exec(t, `UPDATE orders SET expires_at = expires_at - interval '10 min', hold_until = expires_at + interval '1 hour' WHERE id = $1`, released)
	s.notified.BeforeNext(func() { s.release(t, released) })
	closed, err := s.CloseSale(t.Context(), s.onlyProduct(t))
	if err != nil || closed.Orders != 600 {
		t.Errorf("CloseSale returns %+v, %v; want 600 orders", closed, err)
	}
	if late := testenv.Query[int](t, s.db, `SELECT count(*) FROM orders WHERE expires_at > $1`, closed.Deadline); late != 0 {
		t.Errorf("%d orders have a later deadline than %v, want none", late, closed.Deadline)
	}
}

// onlyProduct returns the id of the only product.
func (s *shop) onlyProduct(t testing.TB) uuid.UUID {
	t.Helper()
	return testenv.QueryAll[uuid.UUID](t, s.db, `SELECT id FROM products`)[0]
}

// TestCloseSaleInPagesDuringTraffic closes the sale of a product that has several pages of orders, while customers place,
// pay, cancel and extend orders of the product, and while orders are held and released.
func TestCloseSaleInPagesDuringTraffic(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer := s.insertCustomer(t)
	ids := s.pendingOrders(t, customer, 1700)
	product := s.onlyProduct(t)
	s.exec(t, `UPDATE products SET supply = supply + 100000, available = 100000`)
	s.exec(t, `INSERT INTO order_events (order_id, type, actor, at) SELECT id, 'placed', 'customer', created_at FROM orders`)
	s.exec(t, `UPDATE orders SET expires_at = expires_at + random() * interval '1 hour'`)

	var stop atomic.Bool
	var traffic sync.WaitGroup
	background := func(do func(id uuid.UUID) error, of []uuid.UUID) {
		traffic.Go(func() {
			for i := 0; i < len(of) && !stop.Load(); i++ {
				if err := do(of[i]); err != nil && parttest.KindOf(err).Code != "" && parttest.KindOf(err).Status == 0 {
					t.Error(err)
				}
			}
		})
	}
	background(func(id uuid.UUID) error { _, err := s.Pay(t.Context(), customer, id); return err }, ids[:300])
	background(func(id uuid.UUID) error { _, err := s.Cancel(t.Context(), customer, id); return err }, ids[200:600])
	background(func(id uuid.UUID) error { _, err := s.Extend(t.Context(), customer, id); return err }, ids[500:800])
	background(func(id uuid.UUID) error {
		if _, err := s.db.ExecContext(t.Context(), holdSQL, id); err != nil {
			return err
		}
		_, err := s.db.ExecContext(t.Context(), releaseSQL, id)
		return err
	}, ids[700:1000])
	background(func(uuid.UUID) error {
		_, _, err := s.Place(t.Context(), customer, order.Placement{Lines: []order.Line{line(product, 1)}})
		return err
	}, ids)

	closed, err := s.CloseSale(t.Context(), product)
	stop.Store(true)
	traffic.Wait()
	if err != nil {
		t.Fatal(err)
	}
	if events := testenv.Query[int64](t, s.db, `SELECT count(*) FROM order_events WHERE type = 'brought_forward'`); closed.Orders != events || events < 500 {
		t.Errorf("CloseSale returns %d orders, with %d events; want the same number, and at least 500", closed.Orders, events)
	}
	// Customers may have extended a deadline after it was brought forward.
	later := testenv.QueryAll[uuid.UUID](t, s.db, `SELECT id FROM orders WHERE id = ANY ($1) AND status = 'pending' AND extended_at IS NULL AND expires_at > $2`, ids, closed.Deadline)
	if len(later) > 0 {
		t.Errorf("%d pending orders have a later deadline than %v, want none; among them %v", len(later), closed.Deadline, later[0])
	}
	unowed := testenv.QueryAll[uuid.UUID](t, s.db, `
		SELECT o.id FROM orders o JOIN order_events e ON e.order_id = o.id AND e.type = 'brought_forward'
		LEFT JOIN outbox x ON x.kind = $1 AND x.task_id = o.id::text AND x.due_at <= o.due_at
		WHERE o.status = 'pending' AND o.hold_until IS NULL AND x.task_id IS NULL`, order.CancelKind)
	if len(unowed) > 0 {
		t.Errorf("%d orders that were brought forward have no task due then, want none; among them %v", len(unowed), unowed[0])
	}
	if n := testenv.Query[int](t, s.db, `
		SELECT count(*) FROM orders o JOIN order_events e ON e.order_id = o.id AND e.type = 'brought_forward'
		WHERE o.created_at > (SELECT min(at) FROM order_events WHERE type = 'brought_forward')`); n > 0 {
		t.Errorf("%d orders that were placed later were brought forward, want none", n)
	}
	s.checkInvariants(t, 0)
}
