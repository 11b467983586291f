package order_test

import (
	"testing"
	"time"

	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

func TestOrdersAreHiddenFromOtherCustomers(t *testing.T) {
	s := newShop(t)
	product, other := s.Product(t, 1), s.Customer(t)
	o := s.MustPlace(t, s.Customer(t), line(product, 1))
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
	if orders, next, err := s.List(t.Context(), other, nil, 20); err != nil || len(orders) != 0 || next != nil {
		t.Errorf("list returns %v, cursor %v, error %v; want no orders and no cursor", orders, next, err)
	}
}

// TestDeadlinePassesDuringLockWait has a customer pay an order whose row is locked. The holder of the lock moves the
// deadline, which then passes before the lock is released: the payment must decide by the row, and the time, after its
// wait. All changes of an order wait in the same way, in [order.Store.Update].
func TestDeadlinePassesDuringLockWait(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer, id := s.pending(t)
	release := testenv.HoldLock(t, s.DB,
		`UPDATE orders SET expires_at = clock_timestamp() + interval '200 ms' WHERE id = $1`, id)
	paid := async(func() error { _, err := s.Pay(t.Context(), customer, id); return err })
	testenv.AwaitLockWait(t, s.DB)
	began := testenv.Query[time.Time](t, s.DB, `SELECT clock_timestamp()`)
	testenv.Eventually(t, "the deadline to pass", func() bool {
		return testenv.Query[bool](t, s.DB, `SELECT clock_timestamp() > $1::timestamptz + interval '200 ms'`, began)
	})
	release()
	if err := <-paid; parttest.ClassOf(err) != order.DeadlinePassed {
		t.Errorf("Pay returns %v, want code %s", err, order.DeadlinePassed.Code)
	}
	s.CheckInvariants(t, timeout)
}

// TestDeadlineExtendedDuringLockWait has a customer cancel an order whose deadline has passed when the request begins.
// The holder of the row's lock moves the deadline into the future.
func TestDeadlineExtendedDuringLockWait(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer, id := s.pending(t)
	s.Expire(t, id)
	release := testenv.HoldLock(t, s.DB, `UPDATE orders SET expires_at = now() + interval '1 hour' WHERE id = $1`, id)
	cancelled := async(func() error { _, err := s.Cancel(t.Context(), customer, id); return err })
	testenv.AwaitLockWait(t, s.DB)
	release()
	if err := <-cancelled; err != nil {
		t.Errorf("Cancel returns %v, want no error", err)
	}
	s.CheckInvariants(t, 0)
}
