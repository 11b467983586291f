package order_test

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// shop is a service on a database of the test's own, without a queue.
type shop struct {
	*order.Service
	store     *order.Store
	db        *sql.DB
	published *published
	metrics   *prometheus.Registry
	url       string
}

const timeout = 30 * time.Minute

func newShop(t testing.TB) *shop {
	t.Helper()
	url := testenv.Postgres(t)
	gdb, err := order.Open(t.Context(), url, 20)
	if err != nil {
		t.Fatal(err)
	}
	db, err := gdb.DB()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	s := &shop{store: order.NewStore(gdb), db: db, published: &published{}, metrics: prometheus.NewRegistry(), url: url}
	log := slog.New(slog.DiscardHandler)
	s.Service = order.NewService(s.store, s.published, order.NewAnnouncer(nil, log, s.metrics), order.Config{Timeout: timeout}, log, s.metrics)
	return s
}

// published keeps the messages that a service publishes.
type published struct {
	mu   sync.Mutex
	msgs []delay.Message
}

func (p *published) Publish(_ context.Context, m delay.Message) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.msgs = append(p.msgs, m)
	return true
}

func (p *published) all() []delay.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.msgs
}

func (s *shop) customer(t testing.TB) uuid.UUID {
	t.Helper()
	return s.SignUp()
}

// knownCustomer is a customer whom the database knows, for orders that a test inserts by itself.
func (s *shop) knownCustomer(t testing.TB) uuid.UUID {
	t.Helper()
	id := s.customer(t)
	s.exec(t, `INSERT INTO customers (id) VALUES ($1)`, id)
	return id
}

// product adds a product at 1 euro.
func (s *shop) product(t testing.TB, supply int64) uuid.UUID {
	t.Helper()
	return s.productIn(t, supply, "EUR")
}

func (s *shop) productIn(t testing.TB, supply int64, currency string) uuid.UUID {
	t.Helper()
	id := uuid.New()
	s.exec(t, `INSERT INTO products (id, name, price_cents, currency, supply, available) VALUES ($1, $2, 100, $3, $4, $4)`,
		id, "product "+id.String()[:4], currency, supply)
	return id
}

func (s *shop) exec(t testing.TB, statement string, args ...any) {
	t.Helper()
	conn, err := s.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The shop's own limit is not for whatever a test needs to be there.
	if _, err := conn.ExecContext(t.Context(), `SET statement_timeout = 0`); err != nil {
		t.Fatal(err)
	}
	defer conn.ExecContext(t.Context(), `RESET statement_timeout`)
	if _, err := conn.ExecContext(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// hold has somebody change a row, and not commit before release is called.
func (s *shop) hold(t *testing.T, statement string, args ...any) (release func()) {
	t.Helper()
	tx, err := s.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback() })
	if _, err := tx.ExecContext(t.Context(), `SET LOCAL idle_in_transaction_session_timeout = 0`); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.ExecContext(t.Context(), statement, args...); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
	}
}

// query reads one value.
func query[T any](t testing.TB, s *shop, statement string, args ...any) T {
	t.Helper()
	var v T
	if err := s.db.QueryRowContext(t.Context(), statement, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return v
}

// ids reads a column of ids.
func (s *shop) ids(t testing.TB, statement string, args ...any) (ids []uuid.UUID) {
	t.Helper()
	rows, err := s.db.QueryContext(t.Context(), statement, args...)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id uuid.UUID
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return ids
}

func (s *shop) available(t testing.TB, product uuid.UUID) int64 {
	t.Helper()
	return query[int64](t, s, `SELECT available FROM products WHERE id = $1`, product)
}

// place places an order that must succeed.
func (s *shop) place(t testing.TB, customer uuid.UUID, lines ...order.Line) *order.Order {
	t.Helper()
	o, replayed, err := s.Place(t.Context(), customer, order.Placement{Lines: lines})
	if err != nil || replayed {
		t.Fatalf("place: replayed %v, %v", replayed, err)
	}
	return o
}

func line(product uuid.UUID, quantity int64) order.Line {
	return order.Line{ProductID: product, Quantity: quantity}
}

// expireSQL moves an order an hour back, half an hour past its deadline.
const expireSQL = `UPDATE orders SET created_at = created_at - interval '1 hour', expires_at = expires_at - interval '1 hour' WHERE id = $1`

func (s *shop) expire(t testing.TB, id uuid.UUID) {
	t.Helper()
	s.exec(t, expireSQL, id)
}

// cancelDue has the worker's handler take orders, and returns its outcomes.
func (s *shop) cancelDue(t testing.TB, ids ...uuid.UUID) []delay.Outcome {
	t.Helper()
	tasks := make([]delay.Task, len(ids))
	for i, id := range ids {
		tasks[i].ID = id.String()
	}
	outcomes, err := s.CancelDue(t.Context(), tasks)
	if err != nil {
		t.Fatal(err)
	}
	return outcomes
}

// timeOut has the reconciler time out a page of the overdue orders, and returns how many it cancelled.
func (s *shop) timeOut(ctx context.Context, grace time.Duration, limit int) (int, error) {
	ids, _, err := s.store.Overdue(ctx, "", grace, limit)
	if err != nil {
		return 0, err
	}
	done, _, err := s.TimeOut(ctx, ids)
	return done, err
}

// keepsPromise fails the test for every violation of the promise.
func (s *shop) keepsPromise(t testing.TB, bound time.Duration) {
	t.Helper()
	violations, err := s.store.Invariants(t.Context(), bound)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range violations {
		t.Errorf("invariant %d: %s: %s", v.Invariant, v.Subject, v.Detail)
	}
}

// codeOf is the code of a refusal, "" for no error, and of any other error something that is no code.
func codeOf(err error) order.Code {
	if err == nil {
		return ""
	}
	if refusal, ok := errors.AsType[*order.Error](err); ok {
		return refusal.Code
	}
	return order.Code("not a refusal: " + err.Error())
}

// eventually waits for a state.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); !is(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("in 10 seconds not seen: %s", what)
		}
	}
}
