package closesale_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/closesale"
	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m, migrations.Up) }

// shop is a shop whose sales can be closed.
type shop struct {
	*ordertest.Shop
	*closesale.Service
}

func newShop(t testing.TB, changes ...func(*order.Config)) *shop {
	t.Helper()
	s := ordertest.New(t, changes...)
	return &shop{s, closesale.NewService(closesale.NewStore(s.Gorm), s, s.Metrics)}
}

func line(product uuid.UUID, quantity int64) order.Line { return ordertest.Line(product, quantity) }

// close closes the sale of the order's product. It is an [ordertest.Operation].
func (s *shop) close(t testing.TB, _, product, _ uuid.UUID) error {
	_, err := s.CloseSale(t.Context(), product)
	return err
}

// TestCloseSale brings the deadlines of a product's orders forward, and leaves those of other orders.
func TestCloseSale(t *testing.T) {
	s := newShop(t)
	customer, product, other := s.Customer(t), s.Product(t, 10), s.Product(t, 10)
	pending, both := s.MustPlace(t, customer, line(product, 1)), s.MustPlace(t, customer, line(other, 1), line(product, 1))
	held, foreign, soon := s.MustPlace(t, customer, line(product, 1)), s.MustPlace(t, customer, line(other, 1)), s.MustPlace(t, customer, line(product, 1))
	s.Hold(t, held.ID)
	s.Pass(t, soon.ID, ordertest.Timeout-30*time.Second)

	closed, err := s.CloseSale(t.Context(), product)
	if err != nil || closed.Orders != 3 {
		t.Fatalf("CloseSale returns %+v, %v; want 3 orders", closed, err)
	}
	for name, test := range map[string]struct {
		id   uuid.UUID
		left time.Duration // to the deadline
	}{
		"pending": {pending.ID, time.Minute}, "with another product": {both.ID, time.Minute}, "held": {held.ID, time.Minute},
		"of another product": {foreign.ID, ordertest.Timeout}, "with an early deadline": {soon.ID, 30 * time.Second},
	} {
		o, err := s.Get(t.Context(), customer, test.id)
		if err != nil || !ordertest.Near(o.ExpiresAt.Sub(o.ServerTime), test.left) {
			t.Errorf("the deadline of the order %s is %v, at %v, %v; want about %v left", name, o.ExpiresAt, o.ServerTime, err, test.left)
		}
		if moved := test.left == time.Minute; moved != o.ExpiresAt.Equal(closed.Deadline) || s.Notified.Of(o.CustomerID, o.ID) != map[bool]int{false: 1, true: 2}[moved] {
			t.Errorf("the deadline of the order %s is %v, with %d notifications; want %v exactly if it is moved, and a notification then",
				name, o.ExpiresAt, s.Notified.Of(o.CustomerID, o.ID), closed.Deadline)
		}
		if due := s.OutboxLeft(t, order.CancelKind, test.id); name != "held" && name != "with an early deadline" && !ordertest.Near(due, test.left) {
			t.Errorf("the task of the order %s is due in %v, want about %v", name, due, test.left)
		}
	}
	// A held order is not cancelled before its hold ends. The task of the hold is due when its checkout ends.
	const checkout = 3 * time.Minute // see ordertest.HoldSQL
	o, err := s.Get(t.Context(), customer, held.ID)
	if err != nil || o.HoldUntil.Sub(*o.CheckoutUntil) != ordertest.HoldTime || !o.DueAt.Equal(*o.HoldUntil) {
		t.Errorf("the held order is %+v, %v; want its hold to end %v after its checkout", o, err, ordertest.HoldTime)
	}
	if settle, cancel := s.OutboxLeft(t, ordertest.HoldKind, held.ID), s.OutboxLeft(t, order.CancelKind, held.ID); !ordertest.Near(settle, checkout) ||
		!ordertest.Near(cancel, checkout+ordertest.HoldTime) {
		t.Errorf("the task of the hold is due in %v and that of the cancellation in %v, want about %v and %v",
			settle, cancel, checkout, checkout+ordertest.HoldTime)
	}
	s.Pass(t, held.ID, checkout)
	if left, ok := s.Deliver(t, held.ID)[0].Retry(); !ok || !ordertest.Near(left, ordertest.HoldTime) {
		t.Errorf("at the end of its checkout the task of the held order is due again in %v (%v), want about %v", left, ok, ordertest.HoldTime)
	}

	if again, err := s.CloseSale(t.Context(), product); err != nil || again.Orders != 0 {
		t.Errorf("the second CloseSale returns %+v, %v; want no orders", again, err)
	}
	if got := parttest.Counter(t, s.Metrics, "orders_brought_forward_total"); got != 3 {
		t.Errorf("orders_brought_forward_total is %v, want 3", got)
	}
	if _, err := s.CloseSale(t.Context(), uuid.New()); parttest.ClassOf(err) != rest.NotFound {
		t.Errorf("CloseSale of an unknown product returns %v, want code %s", err, rest.NotFound.Code)
	}
	s.CheckInvariants(t, 0)
}

// TestCloseSaleWithoutTasks closes a sale in a service without Redis. It writes no outbox rows.
func TestCloseSaleWithoutTasks(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.Store.WithoutTasks()
	product := s.Product(t, 1)
	s.Hold(t, s.MustPlace(t, s.Customer(t), line(product, 1)).ID)
	closed, err := s.CloseSale(t.Context(), product)
	if n := testenv.Query[int](t, s.DB, `SELECT count(*) FROM outbox`); err != nil || closed.Orders != 1 || n != 0 {
		t.Errorf("CloseSale returns %+v, %v and leaves %d messages in the outbox; want one order and no message", closed, err, n)
	}
}

// TestCloseSaleGivesAWholeMinute has CloseSale wait for the lock of an order.
func TestCloseSaleGivesAWholeMinute(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer, product := s.Customer(t), s.Product(t, 2)
	locked := s.MustPlace(t, customer, line(product, 1)).ID
	s.MustPlace(t, customer, line(product, 1))
	release := testenv.HoldLock(t, s.DB, `SELECT FROM orders WHERE id = $1 FOR UPDATE`, locked)
	done := make(chan error, 1)
	go func() {
		_, err := s.CloseSale(t.Context(), product)
		done <- err
	}()
	testenv.AwaitLockWait(t, s.DB)
	released := testenv.Query[time.Time](t, s.DB, `SELECT clock_timestamp()`)
	release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if first := testenv.Query[time.Time](t, s.DB, `SELECT min(expires_at) FROM orders`); first.Sub(released) < time.Minute {
		t.Errorf("a deadline is %v after the end of the wait, want at least a minute", first.Sub(released))
	}
}

// TestCloseSaleFindsReleasedOrder ends the hold of an order between two pages. The order's due time moves back, before
// the end of the first page.
func TestCloseSaleFindsReleasedOrder(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer := s.InsertCustomer(t)
	ids := s.PendingOrders(t, customer, 600) // more than a page
	released := ids[0]
	s.Exec(t, `UPDATE orders SET expires_at = expires_at - interval '10 min', hold_until = expires_at + interval '1 hour' WHERE id = $1`, released)
	s.Notified.BeforeNext(func() { s.Release(t, released) })
	closed, err := s.CloseSale(t.Context(), s.OnlyProduct(t))
	if err != nil || closed.Orders != 600 {
		t.Errorf("CloseSale returns %+v, %v; want 600 orders", closed, err)
	}
	if late := testenv.Query[int](t, s.DB, `SELECT count(*) FROM orders WHERE expires_at > $1`, closed.Deadline); late != 0 {
		t.Errorf("%d orders have a later deadline than %v, want none", late, closed.Deadline)
	}
}

// TestCloseSaleInPagesDuringTraffic closes the sale of a product that has several pages of orders, while customers place,
// pay, cancel and extend orders of the product, and while orders are held and released.
func TestCloseSaleInPagesDuringTraffic(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer := s.InsertCustomer(t)
	ids := s.PendingOrders(t, customer, 1700)
	product := s.OnlyProduct(t)
	s.Exec(t, `UPDATE products SET supply = supply + 100000, available = 100000`)
	s.Exec(t, `UPDATE orders SET expires_at = expires_at + random() * interval '1 hour'`)

	var stop atomic.Bool
	var traffic sync.WaitGroup
	background := func(do func(id uuid.UUID) error, of []uuid.UUID) {
		traffic.Go(func() {
			for i := 0; i < len(of) && !stop.Load(); i++ {
				if err := do(of[i]); err != nil && parttest.ClassOf(err).Code != "" && parttest.ClassOf(err).Status == 0 {
					t.Error(err)
				}
			}
		})
	}
	background(func(id uuid.UUID) error { _, err := s.Pay(t.Context(), customer, id); return err }, ids[:300])
	background(func(id uuid.UUID) error { _, err := s.Cancel(t.Context(), customer, id); return err }, ids[200:600])
	background(func(id uuid.UUID) error { _, err := s.Extend(t.Context(), customer, id); return err }, ids[500:800])
	background(func(id uuid.UUID) error {
		if _, err := s.DB.ExecContext(t.Context(), ordertest.HoldSQL, id); err != nil {
			return err
		}
		_, err := s.DB.ExecContext(t.Context(), ordertest.ReleaseSQL, id)
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
	if events := testenv.Query[int64](t, s.DB, `SELECT count(*) FROM order_events WHERE type = 'brought_forward'`); closed.Orders != events || events < 500 {
		t.Errorf("CloseSale returns %d orders, with %d events; want the same number, and at least 500", closed.Orders, events)
	}
	// Customers may have extended a deadline after it was brought forward.
	later := testenv.QueryAll[uuid.UUID](t, s.DB, `SELECT id FROM orders WHERE id = ANY ($1) AND status = 'pending' AND extended_at IS NULL AND expires_at > $2`, ids, closed.Deadline)
	if len(later) > 0 {
		t.Errorf("%d pending orders have a later deadline than %v, want none; among them %v", len(later), closed.Deadline, later[0])
	}
	unowed := testenv.QueryAll[uuid.UUID](t, s.DB, `
		SELECT o.id FROM orders o JOIN order_events e ON e.order_id = o.id AND e.type = 'brought_forward'
		LEFT JOIN outbox x ON x.kind = $1 AND x.task_id = o.id::text AND x.due_at <= o.due_at
		WHERE o.status = 'pending' AND o.hold_until IS NULL AND x.task_id IS NULL`, order.CancelKind)
	if len(unowed) > 0 {
		t.Errorf("%d orders that were brought forward have no task due then, want none; among them %v", len(unowed), unowed[0])
	}
	if n := testenv.Query[int](t, s.DB, `
		SELECT count(*) FROM orders o JOIN order_events e ON e.order_id = o.id AND e.type = 'brought_forward'
		WHERE o.created_at > (SELECT min(at) FROM order_events WHERE type = 'brought_forward')`); n > 0 {
		t.Errorf("%d orders that were placed later were brought forward, want none", n)
	}
	s.CheckInvariants(t, 0)
}

// TestCloseSaleInEachState closes the sale of the product of an order in each state. See [ordertest.Shop.CheckOperation]
// for how the results are written.
func TestCloseSaleInEachState(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.CheckOperation(t, "close", s.close, map[string]string{
		"pending":                            "ok pending: brought_forward operator owes order.cancel",
		"near the deadline":                  "ok pending: brought_forward operator owes order.cancel",
		"extended":                           "ok pending: brought_forward operator owes order.cancel",
		"extended beyond its first deadline": "ok pending: brought_forward operator owes order.cancel",
		"held":                               "ok pending: brought_forward operator owes order.cancel test.hold",
		"held near the deadline":             "ok pending: brought_forward operator owes order.cancel test.hold",
		"held and released":                  "ok pending: brought_forward operator owes order.cancel",
		"held and extended":                  "ok pending: brought_forward operator owes order.cancel test.hold",
		"being cancelled":                    "ok pending: brought_forward operator owes order.cancel test.hold",
		"being cancelled near the deadline":  "ok pending: brought_forward operator owes order.cancel test.hold",
	})
}

// TestCloseSaleSeesMovedOrder has CloseSale wait for the lock of an order that another session changes.
func TestCloseSaleSeesMovedOrder(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.CheckMovedOrder(t, "close", s.close)
}

// TestWithoutHoldKind closes the sale of a held order in a shop without the package that holds orders. Only the task that
// cancels the order is owed, and the order is cancelled when its hold ends.
func TestWithoutHoldKind(t *testing.T) {
	t.Parallel()
	s := newShop(t, func(c *order.Config) { c.HoldKind, c.HoldPublisher = "", nil })
	customer, product := s.Customer(t), s.Product(t, 1)
	id := s.MustPlace(t, customer, line(product, 1)).ID
	s.Hold(t, id)
	s.Exec(t, `DELETE FROM outbox`) // the task of the placement is published
	if _, err := s.Cancel(t.Context(), customer, id); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CloseSale(t.Context(), product); err != nil {
		t.Fatal(err)
	}
	if owed := s.Owed(t, id); owed != " "+order.CancelKind {
		t.Errorf("the outbox has%s, want only %s", owed, order.CancelKind)
	}
	s.Pass(t, id, 3*time.Minute+ordertest.HoldTime) // from the end of its checkout
	if s.Deliver(t, id); s.Status(t, id) != "cancelled customer" {
		t.Errorf("the order is %s at the end of its hold, want cancelled customer", s.Status(t, id))
	}
	s.CheckInvariants(t, 0)
}

// TestCancelRacesCloseSale has customers cancel orders, held ones and others, while their deadlines are brought forward.
func TestCancelRacesCloseSale(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer := s.InsertCustomer(t)
	ids := s.PendingOrders(t, customer, 600)
	s.Exec(t, `UPDATE orders SET hold_until = expires_at + interval '5 min' WHERE id = ANY ($1)`, ids[:300])
	var racers sync.WaitGroup
	for half := range 2 {
		racers.Go(func() {
			for i := half; i < len(ids); i += 2 {
				if _, err := s.Cancel(t.Context(), customer, ids[i]); err != nil {
					t.Errorf("cancel: %v", err)
				}
			}
		})
	}
	product := s.OnlyProduct(t)
	for range 3 {
		racers.Go(func() {
			if _, err := s.CloseSale(t.Context(), product); err != nil {
				t.Errorf("close sale: %v", err)
			}
		})
	}
	racers.Wait()
	for i, id := range ids {
		if status, want := s.Status(t, id), map[bool]string{true: "pending", false: "cancelled customer"}[i < 300]; status != want {
			t.Errorf("order %s is %s, want %s", id, status, want)
		}
	}
	if n := testenv.Query[int](t, s.DB, `SELECT count(*) FROM outbox WHERE kind = $1 AND due_at <= clock_timestamp()`, ordertest.HoldKind); n != 300 {
		t.Errorf("%d tasks of holds are due now, want 300", n)
	}
	s.CheckTrails(t)
}

// TestQueryPlans checks that the statement uses indexes on large tables.
func TestQueryPlans(t *testing.T) {
	testenv.Slow(t, "fills the tables")
	t.Parallel()
	s := newShop(t)
	s.FillTables(t)
	for name, test := range map[string]struct{ params, index string }{
		"first page": {fmt.Sprintf("'%s', 60000000, 'order.cancel', '', NULL, '%s', NULL, 500", uuid.Nil, uuid.Max), "orders_pending_deadline"},
		"next page":  {fmt.Sprintf("'%s', 60000000, 'order.cancel', 'k', now(), '%s', now(), 500", uuid.Nil, uuid.Nil), "order_items_pkey"},
	} {
		t.Run(name, func(t *testing.T) {
			ordertest.CheckPlan(t, testenv.Explain(t, s.DB, closesale.CloseSaleSQL, test.params), test.index)
		})
	}
}
