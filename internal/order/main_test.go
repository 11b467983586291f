package order_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m, migrations.Up) }

// shop is a service with a database of its own. It has no queue: published and settled record the messages.
type shop struct {
	*order.Service
	t          testing.TB
	store      *order.Store
	db         *sql.DB
	published  *parttest.Published
	settled    *parttest.Published // tasks of held orders
	notified   *parttest.Notified
	metrics    *prometheus.Registry
	serviceLog *testenv.Log
	url        string

	neighbours *neighbours // of each placement; nil: Place places it alone
}

const (
	timeout   = 30 * time.Minute
	extension = 10 * time.Minute
	heldKind  = "test.settle"
)

// newShop returns a shop. Each change changes its configuration.
func newShop(t testing.TB, changes ...func(*order.Config)) *shop {
	t.Helper()
	return newShopAt(t, testenv.Postgres(t), changes...)
}

// newShopAt returns a shop with the database at a URL.
func newShopAt(t testing.TB, url string, changes ...func(*order.Config)) *shop {
	t.Helper()
	gdb, db := parttest.OpenDB(t, url, 20)
	s := &shop{
		t: t, store: order.NewStore(gdb), db: db, published: &parttest.Published{}, settled: &parttest.Published{}, notified: &parttest.Notified{},
		metrics: prometheus.NewRegistry(), serviceLog: &testenv.Log{}, url: url,
	}
	cfg := order.Config{
		Timeout: timeout, Extension: extension,
	}
	for _, change := range changes {
		change(&cfg)
	}
	s.Service = order.NewService(s.store, s.published, cfg, slog.New(slog.NewTextHandler(s.serviceLog, nil)), s.metrics)
	s.HoldBy(heldKind, s.settled)
	s.OnChange(s.notified.Notify)
	return s
}

// awaitPublished waits until as many messages are published as there are orders, and returns them: a placement is answered
// before its task is published.
func (s *shop) awaitPublished(t testing.TB) []delay.Message {
	t.Helper()
	orders := testenv.Query[int](t, s.db, `SELECT count(*) FROM orders`)
	testenv.Eventually(t, fmt.Sprintf("%d published messages", orders), func() bool { return len(s.published.All()) >= orders })
	return s.published.All()
}

// customer returns the id of a new customer, who has no row in the database yet.
func (s *shop) customer(t testing.TB) uuid.UUID {
	t.Helper()
	return s.SignUp()
}

// insertCustomer adds a customer to the database, for orders that a test inserts without [order.Service.Place].
func (s *shop) insertCustomer(t testing.TB) uuid.UUID {
	t.Helper()
	id := s.customer(t)
	s.exec(t, `INSERT INTO customers (id) VALUES ($1)`, id)
	return id
}

// product adds a product that costs 1 euro.
func (s *shop) product(t testing.TB, supply int64) uuid.UUID {
	t.Helper()
	return s.productWithCurrency(t, supply, "EUR")
}

// productWithCurrency adds a product that costs 1 unit of a currency.
func (s *shop) productWithCurrency(t testing.TB, supply int64, currency string) uuid.UUID {
	t.Helper()
	id := uuid.New()
	s.exec(t, `INSERT INTO products (id, name, price_cents, currency, supply, available) VALUES ($1, $2, 100, $3, $4, $4)`,
		id, "product "+id.String()[:4], currency, supply)
	return id
}

// exec is [testenv.Exec] in the shop's database.
func (s *shop) exec(t testing.TB, statement string, args ...any) {
	t.Helper()
	testenv.Exec(t, s.db, statement, args...)
}

// available returns the stock of a product that can be ordered.
func (s *shop) available(t testing.TB, product uuid.UUID) int64 {
	t.Helper()
	return testenv.Query[int64](t, s.db, `SELECT available FROM products WHERE id = $1`, product)
}

// place places a new order, or fails the test.
func (s *shop) place(t testing.TB, customer uuid.UUID, lines ...order.Line) *order.Order {
	t.Helper()
	o, replayed, err := s.Place(t.Context(), customer, order.Placement{Lines: lines})
	if err != nil || replayed {
		t.Fatalf("Place returns replayed %v, error %v; want a new order", replayed, err)
	}
	return o
}

func line(product uuid.UUID, quantity int64) order.Line {
	return order.Line{ProductID: product, Quantity: quantity}
}

// passSQL moves the times of an order back, as if the time $2 in microseconds had passed.
const passSQL = `
	UPDATE orders SET created_at = created_at - passed, expires_at = expires_at - passed, hold_until = hold_until - passed,
	       cancel_requested_at = cancel_requested_at - passed, extended_at = extended_at - passed
	FROM (SELECT $2::bigint * interval '1 us' AS passed) AS time WHERE id = $1`

// pass lets time pass for an order.
func (s *shop) pass(t testing.TB, id uuid.UUID, d time.Duration) {
	t.Helper()
	s.exec(t, passSQL, id, d.Microseconds())
}

// expireSQL moves the times of an order back by an hour. A new order is then overdue by half an hour.
const expireSQL = `
	UPDATE orders SET created_at = created_at - interval '1 hour', expires_at = expires_at - interval '1 hour',
	       hold_until = hold_until - interval '1 hour', cancel_requested_at = cancel_requested_at - interval '1 hour',
	       extended_at = extended_at - interval '1 hour'
	WHERE id = $1`

// expire moves the deadline of a new order into the past.
func (s *shop) expire(t testing.TB, id uuid.UUID) {
	t.Helper()
	s.exec(t, expireSQL, id)
}

// cancelDue passes the tasks of orders to the worker's handler, and returns the outcomes.
func (s *shop) cancelDue(t testing.TB, ids ...uuid.UUID) []delay.Outcome {
	t.Helper()
	return parttest.Handle(t, s.CancelDue, ids...)
}

// timeOut times out a page of the overdue orders, as the reconciler does, and returns the number of cancelled orders.
func (s *shop) timeOut(ctx context.Context, grace time.Duration, limit int) (int, error) {
	page, _, err := s.Pending(ctx, "", -grace-time.Microsecond, limit)
	if err != nil {
		return 0, err
	}
	ids := make([]string, len(page))
	for i, m := range page {
		ids[i] = m.ID
	}
	done, _, err := s.TimeOut(ctx, ids)
	return done, err
}

// checkInvariants fails the test for every violated invariant. No order may be pending longer than bound past its
// deadline.
func (s *shop) checkInvariants(t testing.TB, bound time.Duration) {
	t.Helper()
	violations, err := s.store.Invariants(t.Context(), bound)
	testenv.Must(t, err)
	for _, v := range violations {
		t.Errorf("invariant %d is violated: %s: %s", v.Invariant, v.Subject, v.Detail)
	}
}
