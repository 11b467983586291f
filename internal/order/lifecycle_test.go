package order_test

import (
	"slices"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
)

func TestLifecycle(t *testing.T) {
	pay := func(t *testing.T, s *shop, c, id uuid.UUID) (*order.Order, error) { return s.Pay(t.Context(), c, id) }
	cancel := func(t *testing.T, s *shop, c, id uuid.UUID) (*order.Order, error) {
		return s.Cancel(t.Context(), c, id)
	}
	expire := func(t *testing.T, s *shop, c, id uuid.UUID) (*order.Order, error) {
		s.expire(t, id)
		return s.Get(t.Context(), c, id)
	}
	timeOut := func(t *testing.T, s *shop, c, id uuid.UUID) (*order.Order, error) {
		s.cancelDue(t, id)
		return s.Get(t.Context(), c, id)
	}
	type step struct {
		do   func(t *testing.T, s *shop, c, id uuid.UUID) (*order.Order, error)
		code order.Code
	}

	s := newShop(t)
	for name, test := range map[string]struct {
		steps     []step
		status    order.Status
		reason    order.CancelReason
		available int64 // of 5, with 2 ordered
		events    []string
	}{
		"placed":                    {nil, order.Pending, "", 3, []string{"placed customer"}},
		"paid":                      {[]step{{pay, ""}}, order.Paid, "", 3, []string{"placed customer", "paid customer"}},
		"paid twice":                {[]step{{pay, ""}, {pay, ""}}, order.Paid, "", 3, []string{"placed customer", "paid customer"}},
		"paid, then cancelled":      {[]step{{pay, ""}, {cancel, order.CodeOrderPaid}}, order.Paid, "", 3, []string{"placed customer", "paid customer"}},
		"paid, then due":            {[]step{{pay, ""}, {timeOut, ""}, {pay, ""}}, order.Paid, "", 3, []string{"placed customer", "paid customer"}},
		"cancelled":                 {[]step{{cancel, ""}}, order.Cancelled, order.ByCustomer, 5, []string{"placed customer", "cancelled customer"}},
		"cancelled twice":           {[]step{{cancel, ""}, {cancel, ""}}, order.Cancelled, order.ByCustomer, 5, []string{"placed customer", "cancelled customer"}},
		"cancelled, then paid":      {[]step{{cancel, ""}, {pay, order.CodeOrderCancelled}}, order.Cancelled, order.ByCustomer, 5, []string{"placed customer", "cancelled customer"}},
		"asked too early":           {[]step{{timeOut, ""}}, order.Pending, "", 3, []string{"placed customer"}},
		"late, not yet timed out":   {[]step{{expire, ""}, {pay, order.CodeDeadlinePassed}, {cancel, order.CodeDeadlinePassed}}, order.Pending, "", 3, []string{"placed customer"}},
		"timed out":                 {[]step{{expire, ""}, {timeOut, ""}}, order.Cancelled, order.ByTimeout, 5, []string{"placed customer", "cancelled worker"}},
		"timed out twice":           {[]step{{expire, ""}, {timeOut, ""}, {timeOut, ""}}, order.Cancelled, order.ByTimeout, 5, []string{"placed customer", "cancelled worker"}},
		"timed out, then paid":      {[]step{{expire, ""}, {timeOut, ""}, {pay, order.CodeDeadlinePassed}}, order.Cancelled, order.ByTimeout, 5, []string{"placed customer", "cancelled worker"}},
		"timed out, then cancelled": {[]step{{expire, ""}, {timeOut, ""}, {cancel, order.CodeDeadlinePassed}}, order.Cancelled, order.ByTimeout, 5, []string{"placed customer", "cancelled worker"}},
	} {
		t.Run(name, func(t *testing.T) {
			customer, product := s.customer(t), s.product(t, 5)
			o := s.place(t, customer, line(product, 2))
			for i, step := range test.steps {
				after, err := step.do(t, s, customer, o.ID)
				if codeOf(err) != step.code {
					t.Fatalf("step %d: %v, want code %q", i, err, step.code)
				}
				if err == nil && (len(after.Items) != 1 || after.TotalCents != 200 || after.ServerTime.IsZero()) {
					t.Errorf("step %d answers with %+v", i, after)
				}
			}
			o, err := s.Get(t.Context(), customer, o.ID)
			if err != nil {
				t.Fatal(err)
			}
			if o.Status != test.status || o.CancelReason != test.reason {
				t.Errorf("is %s %s, want %s %s", o.Status, o.CancelReason, test.status, test.reason)
			}
			if (o.PaidAt != nil) != (o.Status == order.Paid) || (o.CancelledAt != nil) != (o.Status == order.Cancelled) {
				t.Errorf("%s, paid at %v, cancelled at %v", o.Status, o.PaidAt, o.CancelledAt)
			}
			if got := s.available(t, product); got != test.available {
				t.Errorf("%d available, want %d", got, test.available)
			}
			events, err := s.Events(t.Context(), customer, o.ID)
			if err != nil {
				t.Fatal(err)
			}
			var told []string
			for _, e := range events {
				told = append(told, e.Type+" "+string(e.Actor))
			}
			if !slices.Equal(told, test.events) {
				t.Errorf("trail is %q, want %q", told, test.events)
			}
		})
	}
	s.keepsPromise(t, 2*timeout)
}

func TestRepeatedPayIsTheSameAnswer(t *testing.T) {
	s := newShop(t)
	customer, product := s.customer(t), s.product(t, 1)
	o := s.place(t, customer, line(product, 1))
	first, err := s.Pay(t.Context(), customer, o.ID)
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.Pay(t.Context(), customer, o.ID)
	if err != nil || !again.PaidAt.Equal(*first.PaidAt) {
		t.Errorf("paid at %v, then at %v, %v", first.PaidAt, again.PaidAt, err)
	}
}

func TestAnotherCustomersOrder(t *testing.T) {
	s := newShop(t)
	product, other := s.product(t, 1), s.customer(t)
	o := s.place(t, s.customer(t), line(product, 1))
	for name, do := range map[string]func() error{
		"get":    func() error { _, err := s.Get(t.Context(), other, o.ID); return err },
		"events": func() error { _, err := s.Events(t.Context(), other, o.ID); return err },
		"pay":    func() error { _, err := s.Pay(t.Context(), other, o.ID); return err },
		"cancel": func() error { _, err := s.Cancel(t.Context(), other, o.ID); return err },
	} {
		if err := do(); codeOf(err) != order.CodeNotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
	if orders, next, err := s.List(t.Context(), other, nil, 20); err != nil || len(orders) != 0 || next != nil {
		t.Errorf("list: %v, %v, %v", orders, next, err)
	}
}

func TestPayAfterWaitingPastTheDeadline(t *testing.T) {
	s := newShop(t)
	for name, do := range map[string]func(c, id uuid.UUID) (*order.Order, error){
		"pay":    func(c, id uuid.UUID) (*order.Order, error) { return s.Pay(t.Context(), c, id) },
		"cancel": func(c, id uuid.UUID) (*order.Order, error) { return s.Cancel(t.Context(), c, id) },
	} {
		t.Run(name, func(t *testing.T) {
			customer, product := s.customer(t), s.product(t, 1)
			o := s.place(t, customer, line(product, 1))
			holder, err := s.db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer holder.Rollback()
			// The holder moves the deadline too: the statement must decide by the row as it finds it.
			if _, err := holder.ExecContext(t.Context(), `UPDATE orders SET expires_at = clock_timestamp() + interval '200 ms' WHERE id = $1`, o.ID); err != nil {
				t.Fatal(err)
			}
			refused := make(chan error, 1)
			go func() {
				_, err := do(customer, o.ID)
				refused <- err
			}()
			s.waitsForLock(t)
			eventually(t, "the deadline to pass", func() bool {
				var passed bool
				err := holder.QueryRowContext(t.Context(), `SELECT clock_timestamp() >= expires_at FROM orders WHERE id = $1`, o.ID).Scan(&passed)
				return err == nil && passed
			})
			if err := holder.Commit(); err != nil {
				t.Fatal(err)
			}
			if err := <-refused; codeOf(err) != order.CodeDeadlinePassed {
				t.Errorf("%v, want %s", err, order.CodeDeadlinePassed)
			}
		})
	}
	s.keepsPromise(t, timeout)
}
