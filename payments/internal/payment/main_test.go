package payment_test

import (
	"database/sql"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/gorm"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/internal/timeout"
	"example.com/shop/migrations"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/payment"
	"example.com/shop/payments/internal/provider"
	"example.com/shop/payments/internal/refund"
	paymentsmigrations "example.com/shop/payments/migrations"
	"example.com/shop/payments/stripesim"
)

func TestMain(m *testing.M) { testenv.Main(m, migrations.Up, paymentsmigrations.Set.Up) }

const (
	payWithin = 30 * time.Minute
	grace     = 2 * time.Minute
	checkout  = 3 * time.Minute
	extension = time.Hour // longer than the grace

	apiKey = "sk_test_1234567890abcdef"
	secret = "whsec_1234567890abcdef"
	// oldSecret still verifies webhooks, as after a rotation.
	oldSecret = "whsec_before"
)

// shop holds the payments and the orders of a database, and the provider, which is a simulator with a database of its
// own, or in memory (newMemoryShop). There is no queue: the publishers record the messages. Tests call the handlers of
// the tasks themselves, and move the clock of an order with [shop.shift].
type shop struct {
	*attempt.Service
	refunder *refund.Service
	webhooks payment.Webhooks
	orders   *order.Service
	due      *timeout.Table // the orders that time out
	orderDB  *order.Store
	provider provider.Provider
	gorm     *gorm.DB // for the stores of other parts
	db       *sql.DB
	url      string // of the database
	metrics  *prometheus.Registry
	handler  http.Handler // with all routes of payments
	tokens   *rest.Tokens

	cancels, settles *parttest.Published
	notified         *parttest.Notified

	mem *memory // the provider, if it is not the simulator

	sim     *stripesim.Simulator
	simDB   *sql.DB
	simURL  string
	hooked  atomic.Pointer[hook]
	calls   callCounts
	product uuid.UUID
}

func newShop(t testing.TB) *shop {
	t.Helper()
	s := openShop(t)
	s.startAtProvider(t, "")
	return s
}

// startAtProvider starts the simulator and the service.
func (s *shop) startAtProvider(t testing.TB, webhookURL string) {
	t.Helper()
	s.startProvider(t, webhookURL)
	stripe := provider.NewStripe(s.simURL, apiKey)
	t.Cleanup(stripe.Close)
	s.start(t, stripe)
}

// openShop returns a shop without a service.
func openShop(t testing.TB) *shop {
	t.Helper()
	url := testenv.Postgres(t)
	gdb, db := parttest.OpenDB(t, url, 20)
	s := &shop{
		url:     url,
		orderDB: order.NewStore(gdb), gorm: gdb, db: db, metrics: prometheus.NewRegistry(),
		cancels: &parttest.Published{}, settles: &parttest.Published{}, notified: &parttest.Notified{},
	}
	return s
}

// config is the configuration of the service.
var config = attempt.Config{
	Grace: grace, Checkout: checkout, Deployment: "test", Pages: "http://shop.example",
}

// start makes the service, with a provider.
func (s *shop) start(t testing.TB, p provider.Provider) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	s.provider = p
	s.webhooks = payment.Webhooks{Deployment: "test", Secrets: secret + "," + oldSecret}
	s.connect(provider.NewCalls(p, provider.CallsConfig{}, log, s.metrics), s.notified.Notify, config, log, s.metrics)
	s.due = timeout.NewTable(s.gorm, order.CancelKind, s.orders.Rows(), log)
	s.product = uuid.New()
	s.exec(t, `INSERT INTO products (id, name, price_cents, currency, supply, available) VALUES ($1, 'Chair', 1000, 'EUR', 1000, 1000)`, s.product)
	s.addRoutes(t, log, s.metrics)
}

// connect makes the orders, the attempts and the refunds.
func (s *shop) connect(
	calls *provider.Calls, changed func(customer, order string), cfg attempt.Config,
	log *slog.Logger, reg prometheus.Registerer,
) {
	s.orders = order.NewService(s.orderDB, s.cancels, order.Config{
		Options: order.Options{OrderTimeout: payWithin, OrderExtension: extension, MaxExtensions: 1},
		Changed: changed,
	}, log, prometheus.NewRegistry())
	s.refunder = refund.NewService(s.gorm, calls, s.orders, log)
	s.Service = attempt.NewService(s.gorm, calls, s.orders, cfg, log, reg)
}

// setCalls replaces the calls to the provider of the service and the refunds.
func (s *shop) setCalls(calls *provider.Calls) {
	s.connect(calls, s.notified.Notify, config, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
}

// Attempts returns the table of settle tasks.
func (s *shop) Attempts() *timeout.Table { return s.table(attempt.Kind, s.Rows()) }

// Refunds returns the table of refund tasks.
func (s *shop) Refunds() *timeout.Table { return s.table(refund.Kind, s.refunder.Rows()) }

func (s *shop) table(kind string, rows timeout.Rows) *timeout.Table {
	return timeout.NewTable(s.gorm, kind, rows, slog.New(slog.DiscardHandler))
}

func (s *shop) addRoutes(t testing.TB, log *slog.Logger, reg prometheus.Registerer) {
	t.Helper()
	s.tokens = parttest.NewTokens(t)
	r := parttest.NewRouter(slog.New(slog.DiscardHandler))
	payment.AddRoutes(r, r.Group("/ops/api"), s.tokens, s.gorm, s.Service, s.refunder, nil, s.webhooks, log, reg)
	s.handler = r
}

// statement returns the statement of a file of one of the packages.
func statement(t testing.TB, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", file))
	testenv.Must(t, err)
	return string(text)
}

// exec is [testenv.Exec] in the shop's database.
func (s *shop) exec(t testing.TB, statement string, args ...any) {
	t.Helper()
	testenv.Exec(t, s.db, statement, args...)
}

// place places an order of 10 euros for a new customer.
func (s *shop) place(t testing.TB) *order.Order {
	t.Helper()
	return s.placeFor(t, keyset.NewID())
}

func (s *shop) placeFor(t testing.TB, customer uuid.UUID) *order.Order {
	t.Helper()
	o, _, err := s.orders.Place(t.Context(), customer, order.Placement{Lines: []order.Line{{ProductID: s.product, Quantity: 1}}})
	testenv.Must(t, err)
	o.CustomerID = customer
	return o
}

// open opens an attempt, or returns the live one.
func (s *shop) open(t testing.TB, o *order.Order) *attempt.Attempt {
	t.Helper()
	a, _, err := s.Open(t.Context(), o.CustomerID, o.ID)
	testenv.Must(t, err)
	if a.State != attempt.Open || a.CheckoutURL == "" {
		t.Fatalf("Open returns %+v, want an open attempt with the URL of its checkout", a)
	}
	return a
}

// placeOpen places an order and opens an attempt.
func (s *shop) placeOpen(t testing.TB) (*order.Order, *attempt.Attempt) {
	t.Helper()
	o := s.place(t)
	return o, s.open(t, o)
}

// shift moves all times of an order, of its attempts and of their refunds into the past. For the shop, that much time
// has passed. The provider's clock does not move.
func (s *shop) shift(t testing.TB, id uuid.UUID, by time.Duration) {
	t.Helper()
	us := by.Microseconds()
	tx, err := s.db.BeginTx(t.Context(), nil)
	testenv.Must(t, err)
	defer tx.Rollback()
	for _, statement := range []string{
		`UPDATE orders SET created_at = created_at - d, expires_at = expires_at - d, hold_until = hold_until - d,
			paid_at = paid_at - d, cancelled_at = cancelled_at - d
			FROM (SELECT $2 * interval '1 microsecond' AS d) AS shift WHERE id = $1`,
		`UPDATE payment_attempts SET opened_at = opened_at - d, closes_at = closes_at - d,
			next_check = next_check - d, ended_at = ended_at - d,
			told_at = told_at - d
			FROM (SELECT $2 * interval '1 microsecond' AS d) AS shift WHERE order_id = $1`,
		`UPDATE refunds r SET created_at = created_at - d, next_check = r.next_check - d, ended_at = r.ended_at - d
			FROM payment_attempts a, (SELECT $2 * interval '1 microsecond' AS d) AS shift WHERE a.id = r.attempt_id AND a.order_id = $1`,
		`UPDATE outbox SET due_at = due_at - d FROM (SELECT $2 * interval '1 microsecond' AS d) AS shift 
			WHERE task_id = $1::text OR task_id IN (SELECT id::text FROM payment_attempts WHERE order_id = $1::uuid)`,
	} {
		if _, err := tx.ExecContext(t.Context(), statement, id, us); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	testenv.Must(t, tx.Commit())
}

// shiftToDeadline moves the clock of an order to a time after its deadline, negative for before.
func (s *shop) shiftToDeadline(t testing.TB, id uuid.UUID, after time.Duration) {
	t.Helper()
	left := testenv.Query[float64](t, s.db, `SELECT extract(epoch FROM expires_at - clock_timestamp()) FROM orders WHERE id = $1`, id)
	s.shift(t, id, time.Duration(left*float64(time.Second))+after)
}

// reschedule moves the deadline of an order to a time from now, as an operator does.
func (s *shop) reschedule(t testing.TB, id uuid.UUID, left time.Duration) error {
	t.Helper()
	now := testenv.Query[time.Time](t, s.db, `SELECT clock_timestamp()`)
	_, err := s.orders.Reschedule(t.Context(), id, now.Add(left), "a test")
	return err
}

// checkNow makes the next checks of an order's attempts and refunds due now.
func (s *shop) checkNow(t testing.TB, id uuid.UUID) {
	t.Helper()
	s.exec(t, `UPDATE payment_attempts SET next_check = least(next_check, now()) WHERE order_id = $1 AND next_check IS NOT NULL`, id)
	s.exec(t, `UPDATE refunds r SET next_check = least(r.next_check, now()) FROM payment_attempts a
		WHERE a.id = r.attempt_id AND a.order_id = $1 AND r.next_check IS NOT NULL`, id)
}

// handle is [parttest.Handle] for tasks of which none may fail.
func handle(t testing.TB, handler delay.Handler, ids ...string) []delay.Outcome {
	t.Helper()
	outcomes := parttest.Handle(t, handler, ids...)
	for i, outcome := range outcomes {
		if outcome.Err() != nil {
			t.Fatalf("task %s fails: %v; want no task to fail", ids[i], outcome.Err())
		}
	}
	return outcomes
}

// tasks returns the ids of the settle tasks of orders, which are those of their attempts. The latest attempt of an order
// comes first.
func (s *shop) tasks(t testing.TB, orders ...uuid.UUID) (ids []string) {
	t.Helper()
	for _, o := range orders {
		found := testenv.Query[string](t, s.db, `SELECT coalesce(string_agg(id::text, ' ' ORDER BY number DESC), '')
			FROM payment_attempts WHERE order_id = $1`, o)
		ids = append(ids, strings.Fields(found)...)
	}
	return ids
}

// settle passes the settle tasks of an order to their handler. left is the time until the first of them is due again;
// again is false if all are done.
func (s *shop) settle(t testing.TB, id uuid.UUID) (left time.Duration, again bool) {
	t.Helper()
	for _, outcome := range handle(t, s.Attempts().Handle, s.tasks(t, id)...) {
		if l, a := outcome.Retry(); a && (!again || l < left) {
			left, again = l, true
		}
	}
	return left, again
}

// settleNow is settle for an order whose attempts are due.
func (s *shop) settleNow(t testing.TB, id uuid.UUID) {
	t.Helper()
	s.checkNow(t, id)
	s.settle(t, id)
}

// cancelDue passes the cancel task of an order to its handler.
func (s *shop) cancelDue(t testing.TB, id uuid.UUID) {
	t.Helper()
	handle(t, s.due.Handle, id.String())
}

// sendRefund passes the task of the refund of an attempt to its handler.
func (s *shop) sendRefund(t testing.TB, attempt uuid.UUID) {
	t.Helper()
	handle(t, s.Refunds().Handle, s.refundOf(t, attempt))
}

func (s *shop) refundOf(t testing.TB, attempt uuid.UUID) string {
	t.Helper()
	return testenv.Query[string](t, s.db, `SELECT id::text FROM refunds WHERE attempt_id = $1`, attempt)
}

// refundNow is sendRefund for a refund that is due.
func (s *shop) refundNow(t testing.TB, a *attempt.Attempt) {
	t.Helper()
	s.checkNow(t, a.OrderID)
	s.sendRefund(t, a.ID)
}

// attempt reads an attempt as its customer sees it.
func (s *shop) attempt(t testing.TB, o *order.Order, id uuid.UUID) *attempt.Attempt {
	t.Helper()
	attempts, err := s.OfOrder(t.Context(), o.CustomerID, o.ID)
	testenv.Must(t, err)
	for i := range attempts {
		if attempts[i].ID == id {
			return &attempts[i]
		}
	}
	t.Fatalf("order %s has no attempt %s", o.ID, id)
	return nil
}

// wantAttempt checks the state of an attempt: its state, then "applied" and "closing" if it is, and the reason and the
// state of its refund, if it has one.
func (s *shop) wantAttempt(t testing.TB, o *order.Order, id uuid.UUID, want string) {
	t.Helper()
	a := s.attempt(t, o, id)
	got := string(a.State)
	if a.Applied {
		got += " applied"
	}
	if a.Closing {
		got += " closing"
	}
	if a.Refund != nil {
		got += " " + string(a.Refund.Reason) + " " + string(a.Refund.State)
	}
	if got != want {
		t.Fatalf("the attempt is %q, want %q", got, want)
	}
}

// wantOrder checks the state of an order: its status, the reason of its cancellation, and "held" if it is.
func (s *shop) wantOrder(t testing.TB, o *order.Order, want string) {
	t.Helper()
	current, err := s.orders.Get(t.Context(), o.CustomerID, o.ID)
	testenv.Must(t, err)
	got := string(current.Status)
	if current.CancelReason != "" {
		got += " " + string(current.CancelReason)
	}
	if current.Status == order.Pending && current.HoldUntil != nil {
		got += " held"
	}
	if got != want {
		t.Fatalf("the order is %q, want %q", got, want)
	}
}

// check checks the invariants, and compares the attempts with the provider's ledger, for a shop that is settled.
func (s *shop) check(t testing.TB) {
	t.Helper()
	for _, full := range []bool{false, true} {
		violations, err := s.orderDB.Invariants(t.Context(), time.Minute, full)
		testenv.Must(t, err)
		more, err := payment.Invariants(t.Context(), s.gorm, 24*time.Hour, full)
		testenv.Must(t, err)
		for _, v := range append(violations, more...) {
			t.Errorf("invariant %d is violated: %s: %s", v.Invariant, v.Subject, v.Detail)
		}
	}
	if s.mem != nil {
		return // it has no ledger of attempts
	}
	for _, e := range s.ledger(t) {
		kept := testenv.Query[int64](t, s.db, `SELECT coalesce((SELECT o.total_cents FROM payment_attempts a JOIN orders o ON o.id = a.order_id
			WHERE a.id = $1 AND a.applied AND o.status = 'paid'), 0)`, e.Attempt)
		if e.Captured-e.Refunded != kept {
			t.Errorf("attempt %s: the provider captured %d and refunded %d, the order has %d of it", e.Attempt, e.Captured, e.Refunded, kept)
		}
	}
}
