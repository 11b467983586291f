package order_test

import (
	"strings"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/app"
	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
)

// where returns what operators are told about an order.
func where(t *testing.T, s *shop, id uuid.UUID) app.FoundRow {
	t.Helper()
	rows, err := s.Where(t.Context(), id.String())
	testenv.Must(t, err)
	return rows[0]
}

// TestWhereSaysTheState asks for an order while it is pending, while it is held, and after its end.
func TestWhereSaysTheState(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	_, id := s.pending(t)
	row := where(t, s, id)
	if row.Kind != order.CancelKind || row.Status != "pending" || row.Held || row.EndedAt != nil || row.EndedBy != "" {
		t.Errorf("a pending order is %+v, want it pending, with the kind %s", row, order.CancelKind)
	}
	if left := row.DueAt.Sub(row.At); left <= 0 || left > timeout {
		t.Errorf("a pending order is due in %v, want at most %v", left, timeout)
	}
	s.Hold(t, id)
	if row = where(t, s, id); !row.Held {
		t.Errorf("a held order is %+v, want it held", row)
	}
	s.Release(t, id)
	s.Expire(t, id)
	s.Deliver(t, id)
	if row = where(t, s, id); row.Status != "cancelled" || row.EndedAt == nil || row.EndedBy != "worker" {
		t.Errorf("a cancelled order is %+v, want when and by whom it was ended", row)
	}
}

// TestWhereIsLockedOrder asks for an overdue order while another session has locked its product, or the order itself.
func TestWhereIsLockedOrder(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	place := func() (id, product uuid.UUID) {
		product = s.Product(t, 1)
		return s.MustPlace(t, s.Customer(t), line(product, 1)).ID, product
	}
	id, product := place()
	s.Expire(t, id)
	for name, lock := range map[string]struct {
		statement string
		id        uuid.UUID
	}{
		"the order":                       {`SELECT FROM orders WHERE id = $1 FOR UPDATE`, id},
		"the product " + product.String(): {`UPDATE products SET supply = supply WHERE id = $1`, product},
	} {
		release := testenv.HoldLock(t, s.DB, lock.statement, lock.id)
		testenv.Eventually(t, "the lock is older than a second", func() bool {
			return strings.Contains(where(t, s, id).Blocker, name+" is locked by the session ")
		})
		blocker := where(t, s, id).Blocker
		if !strings.Contains(blocker, "idle in transaction, in a transaction since 20") {
			t.Errorf("%s: the blocker is %q, want the state of the session and its age", name, blocker)
		}
		release()
		if blocker := where(t, s, id).Blocker; blocker != "" {
			t.Errorf("%s is free, and the blocker is %q, want none", name, blocker)
		}
	}
	early, other := place()
	defer testenv.HoldLock(t, s.DB, `SELECT FROM products WHERE id = $1 FOR UPDATE`, other)()
	testenv.Eventually(t, "the lock is older than a second", func() bool {
		return testenv.Query[bool](t, s.DB, `
			SELECT EXISTS (
				SELECT FROM pg_stat_activity
				WHERE datname = current_database() AND state = 'idle in transaction'
				      AND xact_start < clock_timestamp() - interval '1 s'
			)`)
	})
	if blocker := where(t, s, early).Blocker; blocker != "" {
		t.Errorf("before the order is due, the blocker is %q, want none", blocker)
	}
}

// TestPayAtOnceIsOff reads an order of a service without a route to pay it. TestModel has those of one with a route.
func TestPayAtOnceIsOff(t *testing.T) {
	t.Parallel()
	s := newShop(t, func(c *order.Config) { c.NoPayAtOnce = true })
	customer, id := s.pending(t)
	if o, err := s.Get(t.Context(), customer, id); err != nil || o.PayAtOnce {
		t.Errorf("the order is %+v, %v; want one that cannot be paid at once", o, err)
	}
}
