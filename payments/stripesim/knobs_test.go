package stripesim

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v85"

	"example.com/shop/internal/testenv"
)

func TestDown(t *testing.T) {
	f := newFixture(t)
	s := f.create(t)
	f.set(t, func(k *Knobs) { k.API = "down" })
	if _, err := f.stripe.V1CheckoutSessions.Retrieve(t.Context(), s.ID, nil); !errors.Is(err, io.EOF) {
		t.Errorf("retrieving returned %v, want EOF", err)
	}
	if _, err := f.stripe.V1CheckoutSessions.Create(t.Context(), sessionParams()); !errors.Is(err, io.EOF) {
		t.Errorf("creating returned %v, want EOF", err)
	}
	if len(f.ledger(t)) != 1 {
		t.Error("a provider that is down created a session")
	}
	if res := f.submit(t, s.ID, "pay"); res.StatusCode != http.StatusSeeOther {
		t.Errorf("the checkout page answered %d, want 303: the knob is only for the API", res.StatusCode)
	}
	f.set(t, func(k *Knobs) { k.API = "up" })
	if got := f.retrieve(t, s.ID); got.PaymentStatus != stripe.CheckoutSessionPaymentStatusPaid {
		t.Errorf("the session is %s, want paid", got.PaymentStatus)
	}
}

func TestAnswersAreLostAfterExecution(t *testing.T) {
	f := newFixture(t)
	f.set(t, func(k *Knobs) { k.API = "loses_answers" })
	_, err := f.createWithKey(t, "key", unchanged)
	if !errors.Is(err, io.EOF) {
		t.Errorf("creating returned %v, want EOF", err)
	}
	ledger := f.ledger(t)
	if len(ledger) != 1 {
		t.Fatalf("%d sessions were created, want 1", len(ledger))
	}
	f.set(t, func(k *Knobs) { k.API = "up" })
	s, err := f.createWithKey(t, "key", unchanged)
	testenv.Must(t, err)
	if _, ok := ledger[s.ID]; !ok || !replayed(s) {
		t.Errorf("the same key returned the session %s, want the first one again", s.ID)
	}
	f.set(t, func(k *Knobs) { k.API = "loses_answers" })
	if err := f.expire(t.Context(), s.ID); !errors.Is(err, io.EOF) {
		t.Errorf("expiring returned %v, want EOF", err)
	}
	if got := f.ledger(t)[s.ID]; got.Status != "expired" {
		t.Errorf("the session is %s, want expired", got.Status)
	}
}

// hang sends a request to a simulator that is hung, and returns when the request has been sent.
func (f *fixture) hang(t testing.TB, ctx context.Context) <-chan error {
	t.Helper()
	f.set(t, func(k *Knobs) { k.API = "hung" })
	sent, ended := make(chan struct{}), make(chan error, 1)
	// The transport repeats a request with an idempotency key if the server closes a connection that was used before.
	once := sync.OnceFunc(func() { close(sent) })
	trace := &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { once() }}
	go func() {
		_, err := f.stripe.V1CheckoutSessions.Create(httptrace.WithClientTrace(ctx, trace), sessionParams())
		ended <- err
	}()
	<-sent
	select {
	case err := <-ended:
		t.Fatalf("the request ended with %v, although the simulator is hung", err)
	case <-time.After(50 * time.Millisecond):
	}
	return ended
}

func TestHungUntilKnobChanges(t *testing.T) {
	f := newFixture(t)
	ended := f.hang(t, context.Background())
	if len(f.ledger(t)) != 0 {
		t.Error("a hung request was executed")
	}
	f.set(t, func(k *Knobs) { k.API = "up" })
	if err := <-ended; err != nil {
		t.Errorf("the request ended with %v, want an answer after the knob has changed", err)
	}

	ended = f.hang(t, context.Background())
	f.set(t, func(k *Knobs) { k.API = "down" })
	if err := <-ended; !errors.Is(err, io.EOF) {
		t.Errorf("the request ended with %v, want EOF", err)
	}
}

// TestHungRequestIsNotExecutedLater gives up a hung request before the knob changes.
func TestHungRequestIsNotExecutedLater(t *testing.T) {
	handlers := make(chan struct{}, 1)
	f := newStoppedFixture(t)
	handler := f.sim.Handler()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { handlers <- struct{}{} }()
		handler.ServeHTTP(w, r)
	}))
	defer server.Close()
	f.stripe = newClient(t, server.URL, testKey)
	ctx, giveUp := context.WithCancel(t.Context())
	ended := f.hang(t, ctx)
	giveUp()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the request ended with %v, want that it was canceled", err)
	}
	<-handlers // ends because the client has gone
	f.set(t, func(k *Knobs) { k.API = "up" })
	if len(f.ledger(t)) != 0 {
		t.Error("a request that its client gave up was executed")
	}
}

func TestHungRequestsEndWithTheSimulator(t *testing.T) {
	for name, end := range map[string]func(stopRun func(), sim *Simulator){
		"Run":   func(stopRun func(), _ *Simulator) { stopRun() },
		"Close": func(_ func(), sim *Simulator) { sim.knobs.stop() }, // Close also closes the database
	} {
		t.Run(name, func(t *testing.T) {
			f := newStoppedFixture(t)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			running := make(chan error, 1)
			go func() { running <- f.sim.Run(ctx) }()
			ended := f.hang(t, context.Background())
			end(stop, f.sim)
			if err := <-ended; !errors.Is(err, io.EOF) {
				t.Errorf("the request ended with %v, want EOF", err)
			}
			stop()
			if err := <-running; err != nil {
				t.Errorf("Run returned %v, want nil", err)
			}
		})
	}
}

func TestAPIKey(t *testing.T) {
	f := newFixture(t)
	for _, authorization := range []string{
		"", "Bearer", "Bearer sk_test_other", "Basic " + testKey, "Bearer " + testKey + "x",
	} {
		res, body := f.call(t, http.MethodGet, "/v1/refunds", nil, "Authorization", authorization)
		expectBody(t, res, body, http.StatusUnauthorized, "invalid_request_error", "", "")
	}
	f.set(t, func(k *Knobs) { k.Key = "sk_test_rotated" })
	_, err := f.stripe.V1CheckoutSessions.Create(t.Context(), sessionParams())
	expectError(t, err, http.StatusUnauthorized, stripe.ErrorTypeInvalidRequest, "", "")
	_, err = newClient(t, f.url, "sk_test_rotated").V1CheckoutSessions.Create(t.Context(), sessionParams())
	testenv.Must(t, err)
}

func TestUnknownPath(t *testing.T) {
	f := newFixture(t)
	for _, request := range [][2]string{
		{"GET", "/v1/charges"}, {"DELETE", "/v1/refunds"}, {"PUT", "/v1/checkout/sessions"},
	} {
		res, body := f.call(t, request[0], request[1], nil)
		expectBody(t, res, body, http.StatusNotFound, "invalid_request_error", "", "")
	}
}

func TestOnlyFormEncoding(t *testing.T) {
	f := newFixture(t)
	res, body := f.call(t, http.MethodPost, "/v1/refunds", url.Values{"a": {"1"}}, "Content-Type", "application/json")
	expectBody(t, res, body, http.StatusBadRequest, "invalid_request_error", "", "")
	res, body = f.call(t, http.MethodPost, "/v1/refunds?a=%zz", url.Values{})
	expectBody(t, res, body, http.StatusBadRequest, "invalid_request_error", "", "")
	large := url.Values{"a": {string(make([]byte, maxBody))}}
	res, body = f.call(t, http.MethodPost, "/v1/refunds", large)
	expectBody(t, res, body, http.StatusBadRequest, "invalid_request_error", "", "")
}

func TestControlOfKnobs(t *testing.T) {
	f := newFixture(t)
	get := func() (k Knobs) {
		t.Helper()
		_, body := f.send(t, http.MethodGet, "/sim/knobs", "", "")
		testenv.Must(t, json.Unmarshal([]byte(body), &k))
		return k
	}
	want := Knobs{
		API: "up", Sessions: "accept", Refunds: "succeed", Webhooks: "normal", Key: testKey, Account: "acct_simulated",
		Events: "*", Locks: "wait",
	}
	f.set(t, func(k *Knobs) { k.Events = "" })
	if got := get(); got != want || f.sim.Knobs() != want {
		t.Errorf("the knobs are %+v, want %+v", got, want)
	}
	res, body := f.send(t, http.MethodPut, "/sim/knobs", "application/json", `{"api":"errors","webhooks":"late"}`)
	want.API, want.Webhooks = "errors", "late"
	if res.StatusCode != http.StatusOK || get() != want {
		t.Errorf("PUT answered %d %s, and the knobs are %+v, want %+v", res.StatusCode, body, get(), want)
	}
	for _, body := range []string{
		`{"api":"broken"}`, `{"sessions":""}`, `{"refunds":"no"}`, `{"webhooks":"off"}`, `{"key":""}`, `{"rate":-1}`,
		`{"locks":"no"}`, `{"apis":"up"}`, `{"api":1}`, `[]`, ``,
	} {
		res, text := f.send(t, http.MethodPut, "/sim/knobs", "application/json", body)
		if res.StatusCode != http.StatusBadRequest || !strings.Contains(text, `"error"`) {
			t.Errorf("PUT %s answered %d %s, want 400", body, res.StatusCode, text)
		}
	}
	if got := get(); got != want {
		t.Errorf("wrong requests changed the knobs to %+v", got)
	}
}

func TestControlOfAmount(t *testing.T) {
	f := newFixture(t)
	s := f.create(t)
	set := func(id, body string) int {
		res, _ := f.send(t, http.MethodPost, "/sim/sessions/"+id+"/amount", "application/json", body)
		return res.StatusCode
	}
	for _, body := range []string{
		`{"amount_cents":0}`, `{"amount_cents":-1}`, `{"amount_cents":100000000}`, `{}`, `{"amount":1}`,
	} {
		if status := set(s.ID, body); status != http.StatusBadRequest {
			t.Errorf("%s answered %d, want 400", body, status)
		}
	}
	if status := set("cs_test_none", `{"amount_cents":1}`); status != http.StatusNotFound {
		t.Errorf("an unknown session answered %d, want 404", status)
	}
	if status := set(s.ID, `{"amount_cents":1}`); status != http.StatusNoContent {
		t.Errorf("answered %d, want 204", status)
	}
	f.submit(t, s.ID, "pay")
	if got := f.retrieve(t, s.ID); got.AmountTotal != 1 || f.ledger(t)[s.ID].CapturedCents != 1 {
		t.Errorf("the session has the amount %d, want 1", got.AmountTotal)
	}
	if status := set(s.ID, `{"amount_cents":2}`); status != http.StatusNotFound {
		t.Errorf("a session that is complete answered %d, want 404", status)
	}
}

// TestRequestsFromOtherSites checks that the page of another site can neither pay nor turn the knobs.
func TestRequestsFromOtherSites(t *testing.T) {
	f := newFixture(t)
	s := f.create(t)
	for _, path := range []string{"/checkout/" + s.ID + "/pay", "/sim/sessions/" + s.ID + "/amount"} {
		res, _ := f.call(t, http.MethodPost, path, url.Values{}, "Sec-Fetch-Site", "cross-site")
		if res.StatusCode != http.StatusForbidden {
			t.Errorf("POST %s answered %d, want 403", path, res.StatusCode)
		}
	}
}

func TestOpenCreatesTheDatabaseOnce(t *testing.T) {
	address, err := url.Parse(testenv.Postgres(t))
	testenv.Must(t, err)
	admin := newStoppedFixture(t, func(c *Config) { c.DatabaseURL = address.String() })
	name := address.Path[1:] + "_sim"
	address.Path = "/" + name
	t.Cleanup(func() {
		if _, err := admin.sim.db.Exec(context.Background(), "DROP DATABASE "+name); err != nil {
			t.Error(err)
		}
	})
	const simulators = 4 // at the same time
	opened := make(chan error, simulators)
	for range simulators {
		go func() {
			sim, err := Open(t.Context(), Config{DatabaseURL: address.String(), Key: testKey})
			if err == nil {
				_, err = sim.Ledger(t.Context())
				sim.Close()
			}
			opened <- err
		}()
	}
	for range simulators {
		if err := <-opened; err != nil {
			t.Error(err)
		}
	}
}

func TestOpenOnTablesOfAnOlderSimulator(t *testing.T) {
	f := newStoppedFixture(t)
	testenv.Must(t, f.exec(t, `ALTER TABLE stripesim.events DROP COLUMN due_at`))
	_, err := Open(t.Context(), Config{DatabaseURL: f.sim.cfg.DatabaseURL, Key: testKey})
	if err == nil || !strings.Contains(err.Error(), "drop the database") {
		t.Errorf("Open returned %v, want an error that says what to do", err)
	}
}

func TestOpenWithWrongURL(t *testing.T) {
	for _, address := range []string{"postgres://:secret@%zz", "postgres://127.0.0.1:1/x"} {
		_, err := Open(t.Context(), Config{DatabaseURL: address, Key: testKey})
		if err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("Open(%s) returned %v, want an error without the password", address, err)
		}
	}
}
