package stripesim

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stripe/stripe-go/v85"
	"github.com/stripe/stripe-go/v85/webhook"

	"example.com/shop/internal/testenv"
)

func TestMain(m *testing.M) {
	// So that a fixture need not make the tables.
	testenv.Main(m, func(ctx context.Context, db *sql.DB) ([]string, error) {
		_, err := db.ExecContext(ctx, schema)
		return nil, err
	})
}

const (
	testKey    = "sk_test_1234567890abcdef"
	testSecret = "whsec_1234567890abcdef"
)

// fixture is a simulator that runs, with a client that uses stripe-go.
type fixture struct {
	sim    *Simulator
	url    string
	stripe *stripe.Client
}

// newFixture starts a simulator on a database of its own. The changes change its configuration.
func newFixture(t testing.TB, changes ...func(*Config)) *fixture {
	t.Helper()
	soon := func(c *Config) {
		c.WebhookRetry, c.WebhookTries = 10*time.Millisecond, 5
		c.LateDelay, c.RefundFails = 300*time.Millisecond, 10*time.Millisecond
	}
	f := newStoppedFixture(t, append([]func(*Config){soon}, changes...)...)
	run(t, f.sim)
	return f
}

// newStoppedFixture is newFixture without Run, and with the times of the default configuration.
func newStoppedFixture(t testing.TB, changes ...func(*Config)) *fixture {
	t.Helper()
	server := httptest.NewUnstartedServer(nil)
	address := "http://" + server.Listener.Addr().String()
	cfg := Config{DatabaseURL: testenv.Postgres(t), Key: testKey, WebhookSecret: testSecret, PublicURL: address}
	for _, change := range changes {
		change(&cfg)
	}
	sim, err := Open(t.Context(), cfg)
	testenv.Must(t, err)
	t.Cleanup(sim.Close)
	server.Config.Handler = sim.Handler()
	server.Start()
	t.Cleanup(server.Close)
	f := &fixture{sim: sim, url: address, stripe: newClient(t, address, testKey)}
	// Most tests count the events of sessions and refunds.
	f.set(t, func(k *Knobs) {
		k.Events = "checkout.session.completed,checkout.session.expired,refund.created,refund.updated,refund.failed"
	})
	return f
}

// run runs a simulator until the test ends.
func run(t testing.TB, sim *Simulator) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- sim.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v, want nil after the end of its context", err)
		}
	})
}

// newClient returns a client that repeats no request and logs nothing.
func newClient(t testing.TB, address, key string) *stripe.Client {
	t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 32}
	t.Cleanup(transport.CloseIdleConnections)
	config := &stripe.BackendConfig{
		URL: stripe.String(address), MaxNetworkRetries: stripe.Int64(0), EnableTelemetry: stripe.Bool(false),
		LeveledLogger: &stripe.LeveledLogger{Level: stripe.LevelNull},
		HTTPClient:    &http.Client{Transport: transport, Timeout: 20 * time.Second},
	}
	return stripe.NewClient(key, stripe.WithBackends(stripe.NewBackendsWithConfig(config)))
}

// sessionParams returns the parameters that the shop sends.
func sessionParams() *stripe.CheckoutSessionCreateParams {
	p := &stripe.CheckoutSessionCreateParams{
		Mode: stripe.String("payment"),
		LineItems: []*stripe.CheckoutSessionCreateLineItemParams{
			lineItemParams("Blue chair", 1333, 3),
		},
		ClientReferenceID:  stripe.String("attempt-1"),
		SuccessURL:         stripe.String("https://shop.example/orders/1?session={CHECKOUT_SESSION_ID}"),
		CancelURL:          stripe.String("https://shop.example/orders/1"),
		ExpiresAt:          stripe.Int64(time.Now().Add(time.Hour).Unix()),
		PaymentMethodTypes: []*string{stripe.String("card")},
		AdaptivePricing:    &stripe.CheckoutSessionCreateAdaptivePricingParams{Enabled: stripe.Bool(false)},
	}
	p.AddMetadata("order_id", "1")
	p.PaymentIntentData = &stripe.CheckoutSessionCreatePaymentIntentDataParams{
		Metadata: map[string]string{"deployment": "test"},
	}
	return p
}

// sessionTotal is the amount of a session of sessionParams.
const sessionTotal = 3999

func lineItemParams(name string, unitAmount, quantity int64) *stripe.CheckoutSessionCreateLineItemParams {
	return &stripe.CheckoutSessionCreateLineItemParams{
		PriceData: &stripe.CheckoutSessionCreateLineItemPriceDataParams{
			Currency: stripe.String("eur"), UnitAmount: stripe.Int64(unitAmount),
			ProductData: &stripe.CheckoutSessionCreateLineItemPriceDataProductDataParams{Name: stripe.String(name)},
		},
		Quantity: stripe.Int64(quantity),
	}
}

func (f *fixture) create(t testing.TB) *stripe.CheckoutSession {
	t.Helper()
	s, err := f.stripe.V1CheckoutSessions.Create(t.Context(), sessionParams())
	testenv.Must(t, err)
	return s
}

func (f *fixture) retrieve(t testing.TB, id string) *stripe.CheckoutSession {
	t.Helper()
	s, err := f.stripe.V1CheckoutSessions.Retrieve(t.Context(), id, nil)
	testenv.Must(t, err)
	return s
}

// paid returns a session that is paid.
func (f *fixture) paid(t testing.TB) *stripe.CheckoutSession {
	t.Helper()
	s := f.create(t)
	if status := f.submit(t, s.ID, "pay").StatusCode; status != http.StatusSeeOther {
		t.Fatalf("paying answered %d, want 303", status)
	}
	return f.retrieve(t, s.ID)
}

func (f *fixture) expire(ctx context.Context, id string) error {
	_, err := f.stripe.V1CheckoutSessions.Expire(ctx, id, nil)
	return err
}

func (f *fixture) refund(t testing.TB, paymentIntent string, amount int64) (*stripe.Refund, error) {
	t.Helper()
	return f.stripe.V1Refunds.Create(t.Context(), &stripe.RefundCreateParams{
		PaymentIntent: stripe.String(paymentIntent), Amount: stripe.Int64(amount),
		Metadata: map[string]string{"attempt": "1"},
	})
}

func (f *fixture) set(t testing.TB, change func(*Knobs)) {
	t.Helper()
	k := f.sim.Knobs()
	change(&k)
	testenv.Must(t, f.sim.SetKnobs(k))
}

// submit submits a form of the checkout page, and does not follow the redirect.
func (f *fixture) submit(t testing.TB, session, form string) response {
	t.Helper()
	res, _ := f.send(t, http.MethodPost, "/checkout/"+session+"/"+form, "application/x-www-form-urlencoded", "")
	return res
}

// send sends a request without authentication, and returns the response and its body.
func (f *fixture) send(t testing.TB, method, path, contentType, body string) (response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, f.url+path, strings.NewReader(body))
	testenv.Must(t, err)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	return roundTrip(t, req)
}

// call sends a request to the API without stripe-go.
func (f *fixture) call(t testing.TB, method, path string, form url.Values, header ...string) (response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, f.url+path, strings.NewReader(form.Encode()))
	testenv.Must(t, err)
	req.Header.Set("Authorization", "Bearer "+testKey)
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return roundTrip(t, req)
}

// response is a response whose body has been read.
type response struct {
	StatusCode int
	Header     http.Header
}

func roundTrip(t testing.TB, req *http.Request) (response, string) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	res, err := transport.RoundTrip(req)
	testenv.Must(t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	testenv.Must(t, err)
	return response{res.StatusCode, res.Header}, string(body)
}

func (f *fixture) ledger(t testing.TB) map[string]Payment {
	t.Helper()
	res, body := f.send(t, http.MethodGet, "/sim/ledger", "", "")
	if res.StatusCode != http.StatusOK {
		t.Fatalf("the ledger answered %d: %s", res.StatusCode, body)
	}
	var ledger struct{ Payments []Payment }
	testenv.Must(t, json.Unmarshal([]byte(body), &ledger))
	bySession := map[string]Payment{}
	for _, p := range ledger.Payments {
		bySession[p.SessionID] = p
	}
	return bySession
}

// expectError checks an error of stripe-go.
func expectError(
	t testing.TB, err error, status int, errorType stripe.ErrorType, code stripe.ErrorCode, param string,
) {
	t.Helper()
	e, ok := errors.AsType[*stripe.Error](err)
	if !ok {
		t.Errorf("the error is %v, want an error of the API", err)
		return
	}
	if e.HTTPStatusCode != status || e.Type != errorType || e.Code != code || e.Param != param || e.Msg == "" ||
		e.RequestID == "" {
		t.Errorf("the error is %v, want status %d, type %q, code %q, param %q, a message and a request id",
			e, status, errorType, code, param)
	}
}

// receiver is a webhook endpoint.
type receiver struct {
	url string

	mu     sync.Mutex
	answer func(try int) int // returns the status for the n-th request, from 1
	events []stripe.Event    // verified, in the order of their arrival
}

// newReceiver starts a webhook endpoint that answers 200.
func newReceiver(t testing.TB) *receiver {
	t.Helper()
	r := &receiver{answer: func(int) int { return http.StatusOK }}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var body bytes.Buffer
		if _, err := body.ReadFrom(req.Body); err != nil {
			return // the simulator stops
		}
		e, err := webhook.ConstructEvent(body.Bytes(), req.Header.Get("Stripe-Signature"), testSecret)
		if err != nil {
			t.Errorf("a webhook is wrong: %v\n%s", err, body.String())
		}
		w.Header().Set("Location", "/") // the simulator must not follow a redirect
		w.WriteHeader(r.add(e))
	}))
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

// configure makes the endpoint the receiver of a simulator.
func (r *receiver) configure(c *Config) { c.WebhookURL = r.url }

func (r *receiver) add(e stripe.Event) (status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	return r.answer(len(r.events))
}

func (r *receiver) received() []stripe.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events[:len(r.events):len(r.events)]
}

// await waits until n events have arrived, and returns them.
func (r *receiver) await(t testing.TB, n int) []stripe.Event {
	t.Helper()
	testenv.Eventually(t, fmt.Sprintf("%d received webhooks", n), func() bool { return len(r.received()) >= n })
	return r.received()
}

// inProcess sends a POST without a body to the handler, not over the network, and returns the status.
func inProcess(handler http.Handler, path string) int {
	req := httptest.NewRequest(http.MethodPost, path, nil)
	req.Header.Set("Authorization", "Bearer "+testKey)
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, req)
	return w.Code
}

func (f *fixture) count(t testing.TB, query string, args ...any) (n int) {
	t.Helper()
	testenv.Must(t, f.sim.db.QueryRow(t.Context(), query, args...).Scan(&n))
	return n
}

// expectBody checks an error that was not read with stripe-go.
func expectBody(t testing.TB, res response, body string, status int, errorType, code, param string) {
	t.Helper()
	var got struct {
		Error struct{ Type, Code, Message, Param string }
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Errorf("the body is %q: %v", body, err)
	}
	e := got.Error
	if res.StatusCode != status || e.Type != errorType || e.Code != code || e.Param != param || e.Message == "" ||
		res.Header.Get("Request-Id") == "" {
		t.Errorf("answered %d %s, want status %d, type %q, code %q, param %q, a message and a request id",
			res.StatusCode, body, status, errorType, code, param)
	}
}

// exec executes a statement in the simulator's database.
func (f *fixture) exec(t testing.TB, statement string) error {
	t.Helper()
	_, err := f.sim.db.Exec(t.Context(), statement)
	return err
}

// control sends a request to the control API, and returns the answer's fields.
func (f *fixture) control(t testing.TB, path, body string) map[string]any {
	t.Helper()
	res, text := f.send(t, http.MethodPost, path, "application/json", body)
	if res.StatusCode != http.StatusOK {
		t.Fatalf("POST %s %s answered %d %s, want 200", path, body, res.StatusCode, text)
	}
	var fields map[string]any
	testenv.Must(t, json.Unmarshal([]byte(text), &fields))
	return fields
}

// strings returns the values of a query's only column.
func (f *fixture) strings(t testing.TB, query string) []string {
	t.Helper()
	rows, err := f.sim.db.Query(t.Context(), query)
	testenv.Must(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	testenv.Must(t, err)
	return all
}
