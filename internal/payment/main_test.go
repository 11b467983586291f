package payment_test

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stripe/stripe-go/v85/webhook"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/payment"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/stripesim"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m, migrations.Up) }

const (
	timeout   = 30 * time.Minute
	grace     = 2 * time.Minute
	extension = time.Hour // longer than the grace

	apiKey = "sk_test_1234567890abcdef"
	secret = "whsec_1234567890abcdef"
	// oldSecret still verifies webhooks, as after a rotation.
	oldSecret = "whsec_before"
)

// shop holds the payments and the orders of a database, and the provider, which is a simulator with a database of its
// own. There is no queue: the publishers record the messages. Tests call the handlers of the tasks themselves, and move
// the clock of an order with [shop.shift].
type shop struct {
	*payment.Service
	store    *payment.Store
	orders   *order.Service
	orderDB  *order.Store
	provider *payment.Provider
	db       *sql.DB
	metrics  *prometheus.Registry
	handler  http.Handler // with all routes of payments
	tokens   *rest.Tokens

	cancels, settles, refunds *parttest.Published
	notified                  *parttest.Notified

	sim     *stripesim.Simulator
	simDB   *sql.DB
	simURL  string
	hooked  atomic.Pointer[hook]
	calls   callCounts
	product uuid.UUID
}

func newShop(t testing.TB) *shop {
	t.Helper()
	gdb, err := postgres.Open(t.Context(), testenv.Postgres(t), "test", 20)
	testenv.Must(t, err)
	db, err := gdb.DB()
	testenv.Must(t, err)
	t.Cleanup(func() { db.Close() })
	s := &shop{
		store: payment.NewStore(gdb), orderDB: order.NewStore(gdb), db: db, metrics: prometheus.NewRegistry(),
		cancels: &parttest.Published{}, settles: &parttest.Published{}, refunds: &parttest.Published{}, notified: &parttest.Notified{},
	}
	s.startProvider(t)
	log := slog.New(slog.DiscardHandler)
	s.provider = payment.NewProvider(payment.ProviderConfig{URL: s.simURL, Key: apiKey, PublicURL: "http://shop.example"}, log)
	t.Cleanup(s.provider.Close)
	s.Service = payment.NewService(s.store, s.provider,
		payment.Publishers{Cancel: s.cancels, Settle: s.settles, Refund: s.refunds}, s.notified,
		payment.Config{Grace: grace, WebhookSecrets: []string{secret, oldSecret}}, log, s.metrics)
	s.orders = order.NewService(s.orderDB, s.cancels, order.Config{Timeout: timeout, Extension: extension}, log, prometheus.NewRegistry())
	s.orders.HoldBy(payment.SettleKind, s.settles)
	s.orders.OnChange(s.notified.Notify)
	s.product = uuid.New()
	s.exec(t, `INSERT INTO products (id, name, price_cents, currency, supply, available) VALUES ($1, 'Chair', 1000, 'EUR', 1000, 1000)`, s.product)
	s.addRoutes(t)
	return s
}

// startProvider starts the simulator. It sends no webhooks: [shop.deliver] does.
func (s *shop) startProvider(t testing.TB) {
	t.Helper()
	address := testenv.Postgres(t)
	sim, err := stripesim.Open(t.Context(), stripesim.Config{
		DatabaseURL: address, Key: apiKey, WebhookSecret: secret, BankDelay: time.Hour, WebhookRetry: 10 * time.Millisecond,
	})
	testenv.Must(t, err)
	t.Cleanup(sim.Close)
	s.sim = sim
	s.simDB, err = sql.Open("pgx", address)
	testenv.Must(t, err)
	t.Cleanup(func() { s.simDB.Close() })
	api := sim.Handler()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			s.calls.add(r)
			if hook := s.hooked.Load(); hook != nil && hook.call == callName(r) {
				hook.serve(w, r, api)
				return
			}
		}
		api.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.simURL = server.URL
	sim.SetPublicURL(server.URL)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- sim.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		testenv.Must(t, <-ended)
	})
}

func (s *shop) addRoutes(t testing.TB) {
	t.Helper()
	s.tokens = parttest.NewTokens(t)
	r := parttest.NewRouter(slog.New(slog.DiscardHandler))
	s.Routes(r, s.tokens)
	s.OpsRoutes(r.Group("/ops/api"))
	s.handler = r
}

// callCounts counts the requests to the provider's API.
type callCounts struct {
	mu     sync.Mutex
	counts map[string]int // by "create", "retrieve", "expire", "refund", "list refunds"
}

func (c *callCounts) add(r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[callName(r)]++
}

func (c *callCounts) of(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[name]
}

// callName returns the name of a request to the provider's API.
func callName(r *http.Request) string {
	switch post := r.Method == http.MethodPost; {
	case strings.HasSuffix(r.URL.Path, "/expire"):
		return "expire"
	case strings.HasPrefix(r.URL.Path, "/v1/checkout/sessions") && post:
		return "create"
	case strings.HasPrefix(r.URL.Path, "/v1/checkout/sessions"):
		return "retrieve"
	case post:
		return "refund"
	default:
		return "list refunds"
	}
}

// exec is [testenv.Exec] in the shop's database.
func (s *shop) exec(t testing.TB, statement string, args ...any) {
	t.Helper()
	testenv.Exec(t, s.db, statement, args...)
}

// place places an order of 10 euros for a new customer.
func (s *shop) place(t testing.TB) *order.Order {
	t.Helper()
	return s.placeFor(t, s.orders.SignUp())
}

func (s *shop) placeFor(t testing.TB, customer uuid.UUID) *order.Order {
	t.Helper()
	o, _, err := s.orders.Place(t.Context(), customer, order.Placement{Lines: []order.Line{{ProductID: s.product, Quantity: 1}}})
	testenv.Must(t, err)
	o.CustomerID = customer
	return o
}

// open opens an attempt, or returns the live one.
func (s *shop) open(t testing.TB, o *order.Order) *payment.Attempt {
	t.Helper()
	a, _, err := s.Open(t.Context(), o.CustomerID, o.ID)
	testenv.Must(t, err)
	if a.State != payment.Open || a.CheckoutURL == "" {
		t.Fatalf("Open returns %+v, want an open attempt with the URL of its checkout", a)
	}
	return a
}

// placeOpen places an order and opens an attempt.
func (s *shop) placeOpen(t testing.TB) (*order.Order, *payment.Attempt) {
	t.Helper()
	o := s.place(t)
	return o, s.open(t, o)
}

// pay pays at a checkout, as the customer's browser does, and reports whether the payment succeeded.
func (s *shop) pay(t testing.TB, checkout string) bool {
	t.Helper()
	switch status := s.submit(t, checkout+"/pay"); status {
	case http.StatusSeeOther:
		return true
	case http.StatusConflict:
		return false
	default:
		t.Fatalf("the checkout answers a payment with status %d, want 303 or 409", status)
		return false
	}
}

func (s *shop) submit(t testing.TB, address string) int {
	t.Helper()
	return sendRequest(t, http.MethodPost, address, "application/x-www-form-urlencoded", "")
}

// sendRequest sends a request to the simulator over a connection of its own, and returns the status of the answer.
func sendRequest(t testing.TB, method, address, contentType, body string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
	testenv.Must(t, err)
	req.Header.Set("Content-Type", contentType)
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	testenv.Must(t, err)
	testenv.Must(t, res.Body.Close())
	return res.StatusCode
}

// checkoutOf returns the URL of the checkout of an attempt whose session the shop may not know.
func (s *shop) checkoutOf(t testing.TB, attempt uuid.UUID) string {
	t.Helper()
	return s.simURL + "/checkout/" + testenv.Query[string](t, s.simDB, `SELECT id FROM stripesim.sessions WHERE client_reference_id = $1`, attempt)
}

// knob changes the provider's knobs.
func (s *shop) knob(t testing.TB, change func(*stripesim.Knobs)) {
	t.Helper()
	k := s.sim.Knobs()
	change(&k)
	testenv.Must(t, s.sim.SetKnobs(k))
}

func (s *shop) setAPI(t testing.TB, api string) {
	t.Helper()
	s.knob(t, func(k *stripesim.Knobs) { k.API = api })
}

// hook acts on the requests with one name to the provider's API. See [callName].
type hook struct {
	call   string
	before func() // before the provider executes the request; may be nil
	after  func() // after it has executed the request, and before it answers; may be nil
	lose   bool   // close the connection instead of answering
}

func (h *hook) serve(w http.ResponseWriter, r *http.Request, api http.Handler) {
	if h.before != nil {
		h.before()
	}
	recorder := httptest.NewRecorder()
	api.ServeHTTP(recorder, r)
	if h.after != nil {
		h.after()
	}
	if h.lose {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), recorder.Header())
	w.WriteHeader(recorder.Code)
	_, _ = w.Write(recorder.Body.Bytes())
}

// resetBreaker replaces the breaker of the provider, so that a test need not wait until it lets a call try again.
func (s *shop) resetBreaker(t testing.TB) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	fresh := payment.NewProvider(payment.ProviderConfig{URL: s.simURL, Key: apiKey, PublicURL: "http://shop.example"}, log)
	t.Cleanup(fresh.Close)
	s.SetProvider(fresh)
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
			cancel_requested_at = cancel_requested_at - d, extended_at = extended_at - d, paid_at = paid_at - d, cancelled_at = cancelled_at - d
			FROM (SELECT $2 * interval '1 microsecond' AS d) AS shift WHERE id = $1`,
		`UPDATE payment_attempts SET opened_at = opened_at - d, next_check = next_check - d, ended_at = ended_at - d
			FROM (SELECT $2 * interval '1 microsecond' AS d) AS shift WHERE order_id = $1`,
		`UPDATE refunds r SET created_at = created_at - d, next_check = r.next_check - d, ended_at = r.ended_at - d
			FROM payment_attempts a, (SELECT $2 * interval '1 microsecond' AS d) AS shift WHERE a.id = r.attempt_id AND a.order_id = $1`,
		`UPDATE outbox SET due_at = due_at - d FROM (SELECT $2 * interval '1 microsecond' AS d) AS shift WHERE task_id = $1::text`,
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

// checkNow makes all attempts and refunds of an order that wait for a check due for it now.
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

// settle passes the settle task of an order to its handler. left is the time until the task is due again; again is false
// if the task is done.
func (s *shop) settle(t testing.TB, id uuid.UUID) (left time.Duration, again bool) {
	t.Helper()
	return handle(t, s.Settle, id.String())[0].Retry()
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
	handle(t, s.orders.CancelDue, id.String())
}

// sendRefund passes the task of the refund of an attempt to its handler.
func (s *shop) sendRefund(t testing.TB, attempt uuid.UUID) {
	t.Helper()
	handle(t, s.SendRefunds, s.refundOf(t, attempt))
}

func (s *shop) refundOf(t testing.TB, attempt uuid.UUID) string {
	t.Helper()
	return testenv.Query[string](t, s.db, `SELECT id::text FROM refunds WHERE attempt_id = $1`, attempt)
}

// refundNow is sendRefund for a refund that is due.
func (s *shop) refundNow(t testing.TB, a *payment.Attempt) {
	t.Helper()
	s.checkNow(t, a.OrderID)
	s.sendRefund(t, a.ID)
}

// attempt reads an attempt as its customer sees it.
func (s *shop) attempt(t testing.TB, o *order.Order, id uuid.UUID) *payment.Attempt {
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

// event is an event at the provider.
type event struct {
	id, kind string
	body     []byte // as webhooks carry it
}

// events returns the provider's events about a session or a payment intent, the oldest first.
func (s *shop) events(t testing.TB, attempt uuid.UUID) (all []event) {
	t.Helper()
	rows, err := s.simDB.QueryContext(t.Context(), `
		SELECT e.id, e.type, e.object FROM stripesim.events e
		WHERE e.object->>'client_reference_id' = $1
		   OR e.object->>'payment_intent' IN (SELECT payment_intent FROM stripesim.sessions WHERE client_reference_id = $1)
		ORDER BY seq`, attempt.String())
	testenv.Must(t, err)
	defer rows.Close()
	for rows.Next() {
		var e event
		var object []byte
		testenv.Must(t, rows.Scan(&e.id, &e.kind, &object))
		e.body = eventBody(e.id, e.kind, "2025-01-01.other", object)
		all = append(all, e)
	}
	testenv.Must(t, rows.Err())
	return all
}

func eventBody(id, kind, version string, object []byte) []byte {
	return fmt.Appendf(nil, `{"id":%q,"object":"event","api_version":%q,"created":1,"type":%q,"data":{"object":%s}}`, id, version, kind, object)
}

// signature returns the header of a webhook.
func signature(body []byte, secret string, at time.Time) string {
	return fmt.Sprintf("t=%d,v1=%s", at.Unix(), hex.EncodeToString(webhook.ComputeSignature(at, body, secret)))
}

// deliver sends a webhook with a right signature, and checks that the answer is 200.
func (s *shop) deliver(t testing.TB, body []byte) {
	t.Helper()
	if a := s.post(t, body, signature(body, secret, time.Now())); a.Code != http.StatusOK || a.Body.String() != `{"received":true}` {
		t.Fatalf("the webhook is answered with %d %s, want 200", a.Code, a.Body)
	}
}

func (s *shop) post(t testing.TB, body []byte, signature string) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/webhooks/stripe", strings.NewReader(string(body)))
	if signature != "" {
		req.Header.Set("Stripe-Signature", signature)
	}
	recorder := httptest.NewRecorder()
	s.handler.ServeHTTP(recorder, req)
	return recorder
}

// deliverAll delivers all events about an attempt, the oldest first.
func (s *shop) deliverAll(t testing.TB, attempt uuid.UUID) {
	t.Helper()
	for _, e := range s.events(t, attempt) {
		s.deliver(t, e.body)
	}
}

// ledgerEntry is a session with its money, as the provider's ledger reports it.
type ledgerEntry struct {
	Attempt   string `json:"client_reference_id"`
	Session   string `json:"session_id"`
	Status    string `json:"status"`
	Amount    int64  `json:"amount_cents"`
	Intent    string `json:"payment_intent"`
	Captured  int64  `json:"captured_cents"`
	Refunded  int64  `json:"refunded_cents"`
	PayStatus string `json:"payment_status"`
}

func (s *shop) ledger(t testing.TB) []ledgerEntry {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.simURL+"/sim/ledger", nil)
	testenv.Must(t, err)
	res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	testenv.Must(t, err)
	defer res.Body.Close()
	var answer struct{ Payments []ledgerEntry }
	testenv.Must(t, json.NewDecoder(res.Body).Decode(&answer))
	return answer.Payments
}

// entry returns the ledger's entry of an attempt.
func (s *shop) entry(t testing.TB, attempt uuid.UUID) ledgerEntry {
	t.Helper()
	for _, e := range s.ledger(t) {
		if e.Attempt == attempt.String() {
			return e
		}
	}
	t.Fatalf("the provider has no session of attempt %s", attempt)
	return ledgerEntry{}
}

// check checks the invariants, and compares the attempts with the provider's ledger, for a shop that is settled.
func (s *shop) check(t testing.TB) {
	t.Helper()
	violations, err := s.orderDB.Invariants(t.Context(), time.Minute)
	testenv.Must(t, err)
	more, err := s.store.Invariants(t.Context(), 24*time.Hour)
	testenv.Must(t, err)
	for _, v := range append(violations, more...) {
		t.Errorf("invariant %d is violated: %s: %s", v.Invariant, v.Subject, v.Detail)
	}
	for _, e := range s.ledger(t) {
		kept := testenv.Query[int64](t, s.db, `SELECT coalesce((SELECT o.total_cents FROM payment_attempts a JOIN orders o ON o.id = a.order_id
			WHERE a.id = $1 AND a.applied AND o.status = 'paid'), 0)`, e.Attempt)
		if e.Captured-e.Refunded != kept {
			t.Errorf("attempt %s: the provider captured %d and refunded %d, the order has %d of it", e.Attempt, e.Captured, e.Refunded, kept)
		}
	}
}
