package order_test

import (
	"slices"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// TestLifecycle takes one order through each sequence of steps that an order can meet.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	pay := func(t *testing.T, s *shop, c, id uuid.UUID) (*order.Order, error) { return s.Pay(t.Context(), c, id) }
	cancel := func(t *testing.T, s *shop, c, id uuid.UUID) (*order.Order, error) {
		return s.Cancel(t.Context(), c, id)
	}
	expire := func(t *testing.T, s *shop, c, id uuid.UUID) (*order.Order, error) {
		s.Expire(t, id)
		return s.Get(t.Context(), c, id)
	}
	timeOut := func(t *testing.T, s *shop, c, id uuid.UUID) (*order.Order, error) {
		s.Deliver(t, id)
		return s.Get(t.Context(), c, id)
	}
	noError := rest.Class{}
	type step struct {
		do    func(t *testing.T, s *shop, c, id uuid.UUID) (*order.Order, error)
		class rest.Class // of the error
	}

	s := newShop(t)
	for name, test := range map[string]struct {
		steps     []step
		status    order.Status
		reason    order.CancelReason
		available int64 // of 5, with 2 ordered
		events    []string
	}{
		"placed":                     {nil, order.Pending, "", 3, []string{"placed customer"}},
		"paid":                       {[]step{{pay, noError}}, order.Paid, "", 3, []string{"placed customer", "paid customer"}},
		"paid twice":                 {[]step{{pay, noError}, {pay, noError}}, order.Paid, "", 3, []string{"placed customer", "paid customer"}},
		"paid, then cancelled":       {[]step{{pay, noError}, {cancel, order.AlreadyPaid}}, order.Paid, "", 3, []string{"placed customer", "paid customer"}},
		"paid, then task delivered":  {[]step{{pay, noError}, {timeOut, noError}, {pay, noError}}, order.Paid, "", 3, []string{"placed customer", "paid customer"}},
		"cancelled":                  {[]step{{cancel, noError}}, order.Cancelled, order.ByCustomer, 5, []string{"placed customer", "cancelled customer"}},
		"cancelled twice":            {[]step{{cancel, noError}, {cancel, noError}}, order.Cancelled, order.ByCustomer, 5, []string{"placed customer", "cancelled customer"}},
		"cancelled, then paid":       {[]step{{cancel, noError}, {pay, order.AlreadyCancelled}}, order.Cancelled, order.ByCustomer, 5, []string{"placed customer", "cancelled customer"}},
		"delivered too early":        {[]step{{timeOut, noError}}, order.Pending, "", 3, []string{"placed customer"}},
		"overdue, not yet timed out": {[]step{{expire, noError}, {pay, order.DeadlinePassed}, {cancel, order.DeadlinePassed}}, order.Pending, "", 3, []string{"placed customer"}},
		"timed out":                  {[]step{{expire, noError}, {timeOut, noError}}, order.Cancelled, order.ByTimeout, 5, []string{"placed customer", "cancelled worker"}},
		"timed out twice":            {[]step{{expire, noError}, {timeOut, noError}, {timeOut, noError}}, order.Cancelled, order.ByTimeout, 5, []string{"placed customer", "cancelled worker"}},
		"timed out, then paid":       {[]step{{expire, noError}, {timeOut, noError}, {pay, order.DeadlinePassed}}, order.Cancelled, order.ByTimeout, 5, []string{"placed customer", "cancelled worker"}},
		"timed out, then cancelled":  {[]step{{expire, noError}, {timeOut, noError}, {cancel, order.DeadlinePassed}}, order.Cancelled, order.ByTimeout, 5, []string{"placed customer", "cancelled worker"}},
	} {
		t.Run(name, func(t *testing.T) {
			customer, product := s.Customer(t), s.Product(t, 5)
			o := s.place(t, customer, line(product, 2))
			for i, step := range test.steps {
				after, err := step.do(t, s, customer, o.ID)
				if parttest.ClassOf(err) != step.class {
					t.Fatalf("step %d returns %v, want code %q", i, err, step.class.Code)
				}
				if err == nil && (len(after.Items) != 1 || after.TotalCents != 200 || after.ServerTime.IsZero()) {
					t.Errorf("step %d returns %+v; want 1 item, a total of 200 cents and the server's time", i, after)
				}
			}
			o, err := s.Get(t.Context(), customer, o.ID)
			if err != nil {
				t.Fatal(err)
			}
			if o.Status != test.status || o.CancelReason != test.reason {
				t.Errorf("status is %q with reason %q, want %q with reason %q", o.Status, o.CancelReason, test.status, test.reason)
			}
			if (o.PaidAt != nil) != (o.Status == order.Paid) || (o.CancelledAt != nil) != (o.Status == order.Cancelled) {
				t.Errorf("the %s order is paid at %v and cancelled at %v", o.Status, o.PaidAt, o.CancelledAt)
			}
			if got := s.Available(t, product); got != test.available {
				t.Errorf("%d available, want %d", got, test.available)
			}
			s.wantEvents(t, customer, o.ID, test.events)
		})
	}
	s.CheckInvariants(t, 2*timeout)
}

// TestChangesNotifyPages checks that each change of an order notifies its customer's pages once, and that a repeated
// request does not.
func TestChangesNotifyPages(t *testing.T) {
	s := newShop(t)
	customer, product := s.Customer(t), s.Product(t, 10)
	place := func() *order.Order { return s.place(t, customer, line(product, 1)) }
	paid, cancelled, late, overdue := place(), place(), place(), place()
	for range 2 {
		if _, err := s.Pay(t.Context(), customer, paid.ID); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Cancel(t.Context(), customer, cancelled.ID); err != nil {
			t.Fatal(err)
		}
	}
	s.Expire(t, late.ID)
	for range 2 {
		s.Deliver(t, late.ID)
	}
	s.Expire(t, overdue.ID)
	for range 2 {
		if _, err := s.timeOut(t.Context(), 0, 10); err != nil {
			t.Fatal(err)
		}
	}
	for name, o := range map[string]*order.Order{"paid": paid, "cancelled": cancelled, "late": late, "overdue": overdue} {
		if n := s.Notified.Of(o.CustomerID, o.ID); n != 2 {
			t.Errorf("%d notifications for the %s order, want 2: one for its placement, one for its end", n, name)
		}
	}
}

func TestRepeatedPayKeepsTimeOfPayment(t *testing.T) {
	s := newShop(t)
	customer, product := s.Customer(t), s.Product(t, 1)
	o := s.place(t, customer, line(product, 1))
	first, err := s.Pay(t.Context(), customer, o.ID)
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.Pay(t.Context(), customer, o.ID)
	if err != nil || !again.PaidAt.Equal(*first.PaidAt) {
		t.Errorf("the second Pay returns %+v, %v; want an order paid at %v", again, err, first.PaidAt)
	}
}

func TestOrdersAreHiddenFromOtherCustomers(t *testing.T) {
	s := newShop(t)
	product, other := s.Product(t, 1), s.Customer(t)
	o := s.place(t, s.Customer(t), line(product, 1))
	for name, do := range map[string]func() error{
		"get":    func() error { _, err := s.Get(t.Context(), other, o.ID); return err },
		"events": func() error { _, err := s.Events(t.Context(), other, o.ID); return err },
		"pay":    func() error { _, err := s.Pay(t.Context(), other, o.ID); return err },
		"cancel": func() error { _, err := s.Cancel(t.Context(), other, o.ID); return err },
		"extend": func() error { _, err := s.Extend(t.Context(), other, o.ID); return err },
	} {
		if err := do(); parttest.ClassOf(err) != rest.NotFound {
			t.Errorf("%s returns %v, want code %s", name, err, rest.NotFound.Code)
		}
	}
	if orders, next, err := s.List(t.Context(), other, rest.Page{Limit: 20}); err != nil || len(orders) != 0 || next != nil {
		t.Errorf("list returns %v, cursor %v, error %v; want no orders and no cursor", orders, next, err)
	}
}

// TestDeadlinePassesDuringLockWait has a customer pay, cancel or extend an order whose row is locked. The deadline passes
// before the lock is released.
func TestDeadlinePassesDuringLockWait(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for name, do := range map[string]func(c, id uuid.UUID) (*order.Order, error){
		"pay":    func(c, id uuid.UUID) (*order.Order, error) { return s.Pay(t.Context(), c, id) },
		"cancel": func(c, id uuid.UUID) (*order.Order, error) { return s.Cancel(t.Context(), c, id) },
		"extend": func(c, id uuid.UUID) (*order.Order, error) { return s.Extend(t.Context(), c, id) },
	} {
		t.Run(name, func(t *testing.T) {
			customer, product := s.Customer(t), s.Product(t, 1)
			o := s.place(t, customer, line(product, 1))
			holder, err := s.DB.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer holder.Rollback()
			// The holder moves the deadline too: the statement must decide by the row as it is once it has the lock.
			if _, err := holder.ExecContext(t.Context(), `UPDATE orders SET expires_at = clock_timestamp() + interval '200 ms' WHERE id = $1`, o.ID); err != nil {
				t.Fatal(err)
			}
			result := make(chan error, 1)
			go func() {
				_, err := do(customer, o.ID)
				result <- err
			}()
			testenv.AwaitLockWait(t, s.DB)
			testenv.Eventually(t, "the deadline to pass", func() bool {
				var passed bool
				err := holder.QueryRowContext(t.Context(), `SELECT clock_timestamp() >= expires_at FROM orders WHERE id = $1`, o.ID).Scan(&passed)
				return err == nil && passed
			})
			if err := holder.Commit(); err != nil {
				t.Fatal(err)
			}
			if err := <-result; parttest.ClassOf(err) != order.DeadlinePassed {
				t.Errorf("%s returns %v, want code %s", name, err, order.DeadlinePassed.Code)
			}
		})
	}
	s.CheckInvariants(t, timeout)
}

// TestTrailOfOlderBinary has an order that an older binary placed and ended: with an event for each.
func TestTrailOfOlderBinary(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer, product := s.Customer(t), s.Product(t, 1)
	id := s.place(t, customer, line(product, 1)).ID
	s.Exec(t, `INSERT INTO order_events (order_id, type, actor, at) SELECT id, 'placed', 'customer', created_at FROM orders`)
	s.Hold(t, id)
	s.Exec(t, `WITH paid AS (UPDATE orders SET status = 'paid', paid_at = clock_timestamp() WHERE id = $1 RETURNING id, paid_at)
		INSERT INTO order_events (order_id, type, actor, at) SELECT id, 'paid', 'provider', paid_at FROM paid`, id)
	s.wantEvents(t, customer, id, []string{"placed customer", "held customer", "paid provider"})
	s.CheckTrails(t)
}

// wantEvents checks the audit trail that a customer gets of an order.
func (s *shop) wantEvents(t testing.TB, customer, id uuid.UUID, want []string) {
	t.Helper()
	events, err := s.Events(t.Context(), customer, id)
	testenv.Must(t, err)
	var trail []string
	for _, e := range events {
		trail = append(trail, e.Type+" "+string(e.Actor))
	}
	if !slices.Equal(trail, want) {
		t.Errorf("the audit trail is %q, want %q", trail, want)
	}
}
