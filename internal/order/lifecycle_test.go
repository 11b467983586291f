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

// TestChangesNotifyPages checks that each change of an order notifies its customer's pages once, and that a repeated
// request does not.
func TestChangesNotifyPages(t *testing.T) {
	s := newShop(t)
	customer, product := s.Customer(t), s.Product(t, 10)
	place := func() *order.Order { return s.MustPlace(t, customer, line(product, 1)) }
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
	for name, o := range map[string]*order.Order{"paid": paid, "cancelled": cancelled, "late": late,
		"overdue": overdue} {
		if n := s.Notified.Of(o.CustomerID, o.ID); n != 2 {
			t.Errorf("%d notifications for the %s order, want 2: one for its placement, one for its end", n, name)
		}
	}
}

func TestRepeatedPayKeepsTimeOfPayment(t *testing.T) {
	s := newShop(t)
	customer, product := s.Customer(t), s.Product(t, 1)
	o := s.MustPlace(t, customer, line(product, 1))
	first, err := s.Pay(t.Context(), customer, o.ID)
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.Pay(t.Context(), customer, o.ID)
	if err != nil || !again.PaidAt.Equal(*first.PaidAt) {
		t.Errorf("the second Pay returns %+v, %v; want an order paid at %v", again, err, first.PaidAt)
	}
	if len(again.Items) != 1 || again.TotalCents != 100 || again.ServerTime.IsZero() {
		t.Errorf("the second Pay returns %+v, want one item, a total of 100 cents and the server's time", again)
	}
}

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

// TestDeadlinePassesDuringLockWait has a customer pay, cancel or extend an order whose row is locked. The deadline
// passes before the lock is released.
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
			o := s.MustPlace(t, customer, line(product, 1))
			holder, err := s.DB.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer holder.Rollback()
			// The holder moves the deadline too: the statement must decide by the row as it is once it has the lock.
			if _, err := holder.ExecContext(t.Context(),
				`UPDATE orders SET expires_at = clock_timestamp() + interval '200 ms'
					WHERE id = $1`, o.ID); err != nil {
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
				err := holder.QueryRowContext(t.Context(),
					`SELECT clock_timestamp() >= expires_at FROM orders WHERE id = $1`, o.ID).Scan(&passed)
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
