package erasure_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/erasure"
	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/testenv"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m, migrations.Up) }

// failing are orders that fail for one customer.
type failing struct {
	erasure.Orders
	customer uuid.UUID
	code     string // of PostgreSQL's error
}

func (f *failing) RemoveCustomer(ctx context.Context, customer uuid.UUID) (int64, error) {
	if customer == f.customer {
		return 0, &pgconn.PgError{Code: f.code}
	}
	return f.Orders.RemoveCustomer(ctx, customer)
}

// TestErase erases a customer with an ended, a locked and a pending order. The orders that stay are erased later, the books stay
// balanced, and other customers keep their orders.
func TestErase(t *testing.T) {
	t.Parallel()
	s := ordertest.New(t)
	orders := &failing{Orders: s.Service}
	e := erasure.NewService(s.Gorm, orders, slog.New(slog.DiscardHandler))
	product, customer, other := s.Product(t, 100), s.Customer(t), s.Customer(t)
	place := func(customer uuid.UUID) uuid.UUID {
		return s.MustPlace(t, customer, ordertest.Line(product, 1)).ID
	}
	end := func(customer, id uuid.UUID) {
		t.Helper()
		_, err := s.Cancel(t.Context(), customer, id)
		testenv.Must(t, err)
	}
	book := func() {
		t.Helper()
		_, err := order.NewBooker(s.Store, slog.New(slog.DiscardHandler), prometheus.NewRegistry()).Book(t.Context())
		testenv.Must(t, err)
	}
	erase := func(want int64) {
		t.Helper()
		got, err := e.Erase(t.Context(), customer)
		if err != nil || got.OrdersLeft != want {
			t.Fatalf("%d orders are left, %v; want %d", got.OrdersLeft, err, want)
		}
	}
	rows := func(customer uuid.UUID) (n int) {
		t.Helper()
		return testenv.Query[int](t, s.DB, `SELECT (SELECT count(*) FROM orders WHERE customer_id = $1) + (SELECT count(*) FROM customers WHERE id = $1)
			+ (SELECT count(*) FROM erasures WHERE customer_id = $1)`, customer)
	}

	ended, paid, pending := place(customer), place(customer), place(customer)
	end(customer, ended)
	s.Do(t, "pay", customer, paid)
	end(other, place(other))
	erase(3) // none is booked
	book()
	unlock := testenv.HoldLock(t, s.DB, `SELECT FROM orders WHERE id = $1 FOR UPDATE`, paid)
	erase(2)
	unlock()
	testenv.Must(t, e.TryAll(t.Context()))
	if n := rows(customer); n != 3 {
		t.Fatalf("%d rows are left, want 3: the pending order, the customer and the request", n)
	}

	end(customer, pending)
	book()
	orders.customer = customer
	for name, test := range map[string]struct {
		code string
		want int
	}{
		"its order is locked":  {"55P03", 0},
		"its removal is slow":  {"57014", 0},
		"the database is away": {"57P01", 1}, // the request: it was not tried
	} {
		orders.code = test.code
		later := s.Customer(t)
		s.Exec(t, `INSERT INTO erasures VALUES ($1, now() + interval '1 hour')`, later)
		if err := e.TryAll(t.Context()); err == nil {
			t.Errorf("%s: TryAll returns no error, although one customer cannot be erased", name)
		}
		if n := rows(later); n != test.want {
			t.Errorf("%s: %d rows of the next customer are left, want %d", name, n, test.want)
		}
	}
	orders.customer = uuid.Nil
	testenv.Must(t, e.TryAll(t.Context()))
	if n := rows(customer); n != 0 {
		t.Errorf("%d rows of the customer are left, want none", n)
	}
	if n := rows(other); n != 2 {
		t.Errorf("the other customer has %d rows, want 2", n)
	}
	erase(0)
	s.CheckInvariants(t, time.Minute)
}
