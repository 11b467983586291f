// Package ordertest helps to test orders, and the parts that change orders, without a queue and without a process.
package ordertest

import (
	"database/sql"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/internal/timeout"
)

// The settings of a shop.
const (
	Timeout       = 30 * time.Minute // from the placement of an order to its deadline
	Extension     = 10 * time.Minute // of a deadline
	MaxExtensions = 2
)

// Shop is a service with a database of its own. It has no queue: Published records the messages.
type Shop struct {
	*order.Service
	*timeout.Table // the orders that time out
	Store          *order.Store
	Gorm           *gorm.DB // for the stores of parts
	DB             *sql.DB
	Published      *parttest.Published
	Notified       *parttest.Notified
	Metrics        *prometheus.Registry
	Log            *testenv.LogBuffer
	URL            string
}

// New returns a shop. Each change changes its configuration.
func New(t testing.TB, changes ...func(*order.Config)) *Shop {
	t.Helper()
	return NewAt(t, testenv.Postgres(t), changes...)
}

// NewAt returns a shop with the database at a URL.
func NewAt(t testing.TB, url string, changes ...func(*order.Config)) *Shop {
	t.Helper()
	gdb, db := parttest.OpenDB(t, url, 20)
	s := &Shop{
		Store: order.NewStore(gdb), Gorm: gdb, DB: db, Published: &parttest.Published{},
		Notified: &parttest.Notified{}, Metrics: prometheus.NewRegistry(), Log: &testenv.LogBuffer{}, URL: url,
	}
	cfg := order.Config{
		Options: order.Options{OrderTimeout: Timeout, OrderExtension: Extension, MaxExtensions: MaxExtensions},
		Changed: s.Notified.Notify,
	}
	for _, change := range changes {
		change(&cfg)
	}
	s.Service = order.NewService(s.Store, s.Published, cfg, slog.New(slog.NewTextHandler(s.Log, nil)), s.Metrics)
	s.Table = timeout.NewTable(gdb, order.CancelKind, s.Rows(), slog.New(slog.NewTextHandler(s.Log, nil)))
	return s
}

// Customer returns the id of a new customer.
func (s *Shop) Customer(t testing.TB) uuid.UUID {
	t.Helper()
	return keyset.NewID()
}

// Product adds a product that costs 1 euro.
func (s *Shop) Product(t testing.TB, supply int64) uuid.UUID {
	t.Helper()
	return s.ProductWithCurrency(t, supply, "EUR")
}

// ProductWithCurrency adds a product that costs 1 unit of a currency.
func (s *Shop) ProductWithCurrency(t testing.TB, supply int64, currency string) uuid.UUID {
	t.Helper()
	id := uuid.New()
	s.Exec(t,
		`INSERT INTO products (id, name, price_cents, currency, supply, available) VALUES ($1, $2, 100, $3, $4, $4)`,
		id, "product "+id.String()[:4], currency, supply)
	return id
}

// Exec is [testenv.Exec] in the shop's database.
func (s *Shop) Exec(t testing.TB, statement string, args ...any) {
	t.Helper()
	testenv.Exec(t, s.DB, statement, args...)
}

// Available returns the stock of a product that can be ordered.
func (s *Shop) Available(t testing.TB, product uuid.UUID) int64 {
	t.Helper()
	return testenv.Query[int64](t, s.DB, `SELECT available FROM products WHERE id = $1`, product)
}

// MustPlace places a new order, or fails the test.
func (s *Shop) MustPlace(t testing.TB, customer uuid.UUID, lines ...order.Line) *order.Order {
	t.Helper()
	o, replayed, err := s.Place(t.Context(), customer, order.Placement{Lines: lines})
	if err != nil || replayed {
		t.Fatalf("Place returns replayed %v, error %v; want a new order", replayed, err)
	}
	return o
}

// Line returns the line of an order.
func Line(product uuid.UUID, quantity int64) order.Line {
	return order.Line{ProductID: product, Quantity: quantity}
}

// PendingOrders inserts n pending orders of one product, and returns their ids.
func (s *Shop) PendingOrders(t testing.TB, customer uuid.UUID, n int) []uuid.UUID {
	t.Helper()
	product := s.Product(t, int64(n))
	ids := make([]uuid.UUID, n)
	for i := range ids {
		ids[i] = keyset.NewID()
	}
	s.Exec(t, `INSERT INTO orders (id, customer_id, total_cents, currency, created_at, expires_at)
		SELECT id, $2, 100, 'EUR', now() - interval '1 hour', now() + interval '1 hour'
			FROM unnest($1::uuid[]) id`, ids, customer)
	s.Exec(t, `INSERT INTO order_items SELECT id, $1, 1, 100, 'a product' FROM orders`, product)
	s.Exec(t, `UPDATE products SET available = 0 WHERE id = $1`, product)
	return ids
}

// FillTables inserts 20,000 orders, for a test of a statement's plan. 1,000 of them are pending, and 300 timed out
// within the last hour.
func (s *Shop) FillTables(t testing.TB) {
	t.Helper()
	customer, product := s.Customer(t), s.Product(t, 20_000)
	s.Exec(t, `
		INSERT INTO orders (id, customer_id, status, ended_by, cancel_reason, total_cents, currency, created_at, expires_at, paid_at, cancelled_at)
		SELECT gen_random_uuid(), $1, status,
		       CASE WHEN status = 'paid' THEN 'customer' WHEN status = 'cancelled' THEN 'worker' END,
		       CASE status WHEN 'cancelled' THEN 'timeout' END, 100, 'EUR', at, at + interval '30 min',
		       CASE status WHEN 'paid' THEN at END,
		       CASE status WHEN 'cancelled' THEN at + interval '30 min' END
		FROM (
			SELECT CASE WHEN i % 20 = 0 THEN 'pending' WHEN i % 2 = 0 THEN 'paid' ELSE 'cancelled' END AS status,
			       now() - i * interval '5.4 s' AS at, i
			FROM generate_series(1, 20000) i
		) o`, customer)
	s.Exec(t, `INSERT INTO order_items SELECT id, $1, 1, 100, 'a product' FROM orders`, product)
	s.Exec(t,
		`INSERT INTO order_events (order_id, type, actor, at) SELECT id, 'reminded', 'worker', created_at FROM orders`)
	s.Exec(t, `VACUUM ANALYZE`)
}

// CheckPlan checks that the plan of a statement uses an index, and reads no table of orders as a whole.
func CheckPlan(t testing.TB, plan, index string) {
	t.Helper()
	testenv.CheckPlan(t, plan, []string{index}, "orders", "order_items", "order_events")
}

// CheckBatchPlan checks that the plan of a statement for a batch reads only the orders of the batch, by their ids.
func CheckBatchPlan(t testing.TB, plan string) {
	t.Helper()
	if !strings.Contains(plan, "orders_pkey") {
		t.Errorf("the plan does not read the orders by their ids:\n%s", plan)
	}
	for _, other := range []string{"orders_pending_deadline", "orders_open", "Seq Scan on orders"} {
		if strings.Contains(plan, other) {
			t.Errorf("the plan reads more orders than those of the batch: %s\n%s", other, plan)
		}
	}
}

// Deliver passes the tasks of orders to the worker's handler, and returns the outcomes.
func (s *Shop) Deliver(t testing.TB, ids ...uuid.UUID) []delay.Outcome {
	t.Helper()
	return parttest.Handle(t, s.Handle, ids...)
}

// Status returns the status of an order and the reason of its cancellation.
func (s *Shop) Status(t testing.TB, id uuid.UUID) string {
	t.Helper()
	return testenv.Query[string](t, s.DB, `SELECT concat_ws(' ', status, cancel_reason) FROM orders WHERE id = $1`, id)
}

// Trail returns the audit trail of an order, each entry with its actor.
func (s *Shop) Trail(t testing.TB, id uuid.UUID) []string {
	t.Helper()
	text := testenv.Query[string](t, s.DB,
		`SELECT string_agg(type || ' ' || actor, ',' ORDER BY at, number) FROM order_trail WHERE order_id = $1`, id)
	return strings.Split(text, ",")
}

// Near reports whether a duration is at most want, and at most ten seconds less.
func Near(got, want time.Duration) bool { return got <= want && got > want-10*time.Second }

// CheckInvariants fails the test for every violated invariant. No order may be pending longer than bound past its
// deadline. It also checks every order and the books.
func (s *Shop) CheckInvariants(t testing.TB, bound time.Duration) {
	t.Helper()
	for _, full := range []bool{false, true} {
		violations, err := s.Store.Invariants(t.Context(), bound, full)
		testenv.Must(t, err)
		for _, v := range violations {
			t.Errorf("invariant %d is violated: %s: %s", v.Invariant, v.Subject, v.Detail)
		}
	}
}

// partialIndex matches the nodes of a plan that scan an index of pending orders, or that of the orders that are not
// booked.
var partialIndex = regexp.MustCompile(`Scan (using|on) (orders_pending_deadline|orders_open|orders_not_booked)\b`)

// CheckOpenPlan checks that a plan finds each order, item and event that it reads by a condition on an index, or in
// the indexes of pending orders and of those that are not booked: it reads no table as a whole.
func CheckOpenPlan(t testing.TB, plan string) {
	t.Helper()
	lines := strings.Split(plan, "\n")
	for i, node := range lines {
		_, table, scans := strings.Cut(node, "Scan")
		if !scans || !strings.Contains(table, " on order") {
			continue
		}
		if partialIndex.MatchString(node) || strings.Contains(node, "Bitmap Heap Scan") { // the bitmap is a node of its own
			continue
		}
		if i+1 == len(lines) || !strings.Contains(lines[i+1], "Index Cond: ") {
			t.Errorf("the plan reads a whole table: %s\n%s", strings.TrimSpace(node), plan)
		}
	}
}

// CheckTrails checks the invariants, and that no order has an event after its end, by their times.
func (s *Shop) CheckTrails(t testing.TB) {
	t.Helper()
	after := testenv.Query[int](t, s.DB, `
		SELECT count(*) FROM orders o JOIN order_events e ON e.order_id = o.id
			WHERE e.at > coalesce(o.paid_at, o.cancelled_at)`)
	if after > 0 {
		t.Errorf("%d events follow the end of their order, want none", after)
	}
	s.CheckInvariants(t, time.Hour)
}
