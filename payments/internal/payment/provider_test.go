package payment_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/testenv"
	"example.com/shop/payments/internal/provider"
	"example.com/shop/payments/stripesim"
)

// startProvider starts the simulator. It sends webhooks to an address, or none if that is "": then [shop.deliver] does.
func (s *shop) startProvider(t testing.TB, webhookURL string) {
	t.Helper()
	address := testenv.Postgres(t)
	server := httptest.NewUnstartedServer(nil)
	s.simURL = "http://" + server.Listener.Addr().String()
	sim, err := stripesim.Open(t.Context(), stripesim.Config{
		DatabaseURL: address, Key: apiKey, WebhookSecret: secret, PublicURL: s.simURL, WebhookURL: webhookURL,
		BankDelay: time.Hour, WebhookRetry: 10 * time.Millisecond,
	})
	testenv.Must(t, err)
	t.Cleanup(sim.Close)
	s.sim = sim
	s.simDB, err = sql.Open("pgx", address)
	testenv.Must(t, err)
	t.Cleanup(func() { s.simDB.Close() })
	api := sim.Handler()
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/") {
			s.calls.add(r)
			if hook := s.hooked.Load(); hook != nil && hook.call == callName(r) {
				hook.serve(w, r, api)
				return
			}
		}
		api.ServeHTTP(w, r)
	})
	server.Start()
	t.Cleanup(server.Close)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- sim.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		testenv.Must(t, <-ended)
	})
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

// resetBreaker replaces the breakers of the provider, so that a test need not wait until it lets a call try again.
func (s *shop) resetBreaker(t testing.TB) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	s.setCalls(provider.NewCalls(s.provider, provider.CallsConfig{}, log, prometheus.NewRegistry()))
}

// knob changes the provider's knobs.
func (s *shop) knob(t testing.TB, change func(*stripesim.Knobs)) {
	t.Helper()
	k := s.sim.Knobs()
	change(&k)
	testenv.Must(t, s.sim.SetKnobs(k))
}

// setAPI sets the knob API of the provider. One that fails has an open breaker afterwards. See [shop.resetBreaker].
func (s *shop) setAPI(t testing.TB, api string) {
	t.Helper()
	if s.mem != nil {
		s.mem.set(func() { s.mem.api = api })
		return
	}
	s.knob(t, func(k *stripesim.Knobs) { k.API = api })
}

// refuseSessions makes the provider refuse to make sessions, or make them again.
func (s *shop) refuseSessions(t testing.TB, refuse bool) {
	t.Helper()
	if s.mem != nil {
		s.mem.fail("create", nil)
		if refuse {
			s.mem.fail("create", failed(provider.Refused, ""))
		}
		return
	}
	s.knob(t, func(k *stripesim.Knobs) {
		k.Sessions = "accept"
		if refuse {
			k.Sessions = "refuse"
		}
	})
}

// rotateKey makes another key the valid one.
func (s *shop) rotateKey(t testing.TB, key string) {
	t.Helper()
	if s.mem != nil {
		s.mem.fail("key", nil)
		if key != apiKey {
			s.mem.fail("key", failed(provider.Denied, ""))
		}
		return
	}
	s.knob(t, func(k *stripesim.Knobs) { k.Key = key })
}

// setRefunds sets the knob Refunds of the provider.
func (s *shop) setRefunds(t testing.TB, refunds string) {
	t.Helper()
	if s.mem != nil {
		s.mem.setRefunds(refunds)
		return
	}
	s.knob(t, func(k *stripesim.Knobs) { k.Refunds = refunds })
}

// hook makes a hook act until the test ends, or until unhook.
func (s *shop) hook(t testing.TB, h hook) {
	t.Helper()
	t.Cleanup(s.unhook)
	if s.mem == nil {
		s.hooked.Store(&h)
		return
	}
	act := func(step func(), lose bool) func() error {
		return func() error {
			if step != nil {
				step()
			}
			if lose {
				return failed(provider.NoAnswer, "")
			}
			return nil
		}
	}
	s.mem.hook(h.call, memoryHook{before: act(h.before, false), after: act(h.after, h.lose)})
}

// unhook ends the hooks.
func (s *shop) unhook() {
	s.hooked.Store(nil)
	if s.mem != nil {
		s.mem.set(func() { clear(s.mem.hooks) })
	}
}

// called returns the number of calls to the provider with a name. See [callName].
func (s *shop) called(name string) int {
	if s.mem != nil {
		return s.mem.count(name)
	}
	return s.calls.of(name)
}

// expireSession lets the session of an attempt expire by itself.
func (s *shop) expireSession(t testing.TB, attempt uuid.UUID) {
	t.Helper()
	if s.mem != nil {
		s.mem.set(func() {
			for _, session := range s.mem.sessions {
				session.Expired = session.Expired || session.Attempt == attempt.String() && !session.Paid
			}
		})
		return
	}
	testenv.Exec(t, s.simDB, `UPDATE stripesim.sessions SET expires_at = clock_timestamp() WHERE client_reference_id = $1`, attempt)
	testenv.Eventually(t, "the simulator expires the session", func() bool {
		return testenv.Query[bool](t, s.simDB, `
			SELECT coalesce(bool_and(status <> 'open'), true) FROM stripesim.sessions
			WHERE client_reference_id = $1`, attempt)
	})
}

// setAmount changes the amount of the session of an attempt, as a tax or a coupon at the provider does.
func (s *shop) setAmount(t testing.TB, attempt uuid.UUID, cents int64) {
	t.Helper()
	s.mem.set(func() { s.mem.of(t, attempt).AmountCents = cents })
}

// pay pays at a checkout, as the customer's browser does, and reports whether the payment succeeded.
func (s *shop) pay(t testing.TB, checkout string) bool {
	t.Helper()
	if s.mem != nil {
		return s.mem.pay(checkout)
	}
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
	if s.mem != nil {
		var url string
		s.mem.set(func() { url = s.mem.of(t, attempt).URL })
		return url
	}
	return s.simURL + "/checkout/" + testenv.Query[string](t, s.simDB, `SELECT id FROM stripesim.sessions WHERE client_reference_id = $1`, attempt)
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
	if s.mem != nil {
		return s.mem.entries()
	}
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
