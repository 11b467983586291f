package stripesim

import (
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v85"

	"example.com/shop/internal/testenv"
)

// TestRates checks the buckets with times of the test.
func TestRates(t *testing.T) {
	l := newLimits()
	now := time.Now()
	took := func(operation string, k Knobs, calls int) (n int, last string) {
		for range calls {
			reason := l.take(operation, k, now)
			if last = reason; reason == "" {
				n++
			}
		}
		return n, last
	}
	k := Knobs{Rate: 30, EndpointRate: 25}
	for _, step := range []struct {
		operation string
		wait      time.Duration
		took      int
		last      string
	}{
		{"a", 0, 25, "endpoint-rate"},
		{"b", 0, 5, "global-rate"},
		{"a", 100 * time.Millisecond, 2, "endpoint-rate"},
		{"b", 0, 1, "global-rate"},
		{"b", time.Hour, 25, "endpoint-rate"},
	} {
		now = now.Add(step.wait)
		if n, last := took(step.operation, k, 100); n != step.took || last != step.last {
			t.Errorf("after %s, %d calls of %s were taken, the last one: %q; want %d, %q",
				step.wait, n, step.operation, last, step.took, step.last)
		}
	}
	if n, _ := took("a", Knobs{}, 100); n != 100 {
		t.Errorf("without a limit, %d of 100 calls were taken", n)
	}
}

// TestRateLimit checks the answer to a call above the limit: it is not stored for the idempotency key.
func TestRateLimit(t *testing.T) {
	f := newStoppedFixture(t)
	paid := f.paid(t)
	f.set(t, func(k *Knobs) { k.EndpointRate = 1 })
	f.retrieve(t, paid.ID)
	_, err := f.stripe.V1CheckoutSessions.Retrieve(t.Context(), paid.ID, nil)
	expectError(t, err, http.StatusTooManyRequests, stripe.ErrorTypeInvalidRequest, stripe.ErrorCodeRateLimit, "")
	refund := url.Values{"payment_intent": {paid.PaymentIntent.ID}, "amount": {"100"}}
	f.call(t, http.MethodPost, "/v1/refunds", url.Values{})
	res, _ := f.call(t, http.MethodPost, "/v1/refunds", refund, "Idempotency-Key", "key-1")
	if res.StatusCode != http.StatusTooManyRequests || res.Header.Get("Stripe-Rate-Limited-Reason") != "endpoint-rate" {
		t.Errorf("a refund above the limit answered %d %v, want 429 with a reason", res.StatusCode, res.Header)
	}
	f.set(t, func(k *Knobs) { k.EndpointRate = 0 })
	res, body := f.call(t, http.MethodPost, "/v1/refunds", refund, "Idempotency-Key", "key-1")
	if res.StatusCode != http.StatusOK || res.Header.Get("Idempotent-Replayed") != "" {
		t.Errorf("the refund below the limit answered %d %s, want 200", res.StatusCode, body)
	}
}

// TestLockTimeout checks the answer to a call that needs a locked object.
func TestLockTimeout(t *testing.T) {
	f := newStoppedFixture(t)
	s := f.create(t)
	f.set(t, func(k *Knobs) { k.Locks = "timeout" })
	tx, err := f.sim.db.Begin(t.Context())
	testenv.Must(t, err)
	_, err = tx.Exec(t.Context(), `SELECT FROM stripesim.sessions FOR UPDATE`)
	testenv.Must(t, err)
	expectError(t, f.expire(t.Context(), s.ID), http.StatusTooManyRequests, stripe.ErrorTypeInvalidRequest,
		stripe.ErrorCodeLockTimeout, "")
	f.retrieve(t, s.ID) // reading needs no lock
	testenv.Must(t, tx.Rollback(t.Context()))
	testenv.Must(t, f.expire(t.Context(), s.ID))
}

// TestLatency checks that a request is executed after the latency, or as soon as the knob changes.
func TestLatency(t *testing.T) {
	f := newStoppedFixture(t)
	f.set(t, func(k *Knobs) { k.LatencyMS = 60_000 })
	created := make(chan error, 1)
	go func() {
		_, err := f.stripe.V1CheckoutSessions.Create(t.Context(), sessionParams())
		created <- err
	}()
	select {
	case err := <-created:
		t.Fatalf("the call returned %v within the latency", err)
	case <-time.After(50 * time.Millisecond):
	}
	const latency = 200 * time.Millisecond // much longer than a call takes
	f.set(t, func(k *Knobs) { k.LatencyMS = int(latency.Milliseconds()) })
	testenv.Must(t, <-created)
	before := time.Now()
	f.create(t)
	if took := time.Since(before); took < latency {
		t.Errorf("a call took %s, want at least %s", took, latency)
	}
}

// TestExecutedThenFailed checks that a call has its effect, and that its 500 is stored.
func TestExecutedThenFailed(t *testing.T) {
	f := newStoppedFixture(t)
	paid := f.paid(t)
	f.set(t, func(k *Knobs) { k.API = "executes_then_500" })
	refund := url.Values{"payment_intent": {paid.PaymentIntent.ID}, "amount": {"100"}}
	for range 2 {
		res, body := f.call(t, http.MethodPost, "/v1/refunds", refund, "Idempotency-Key", "key-1")
		expectBody(t, res, body, http.StatusInternalServerError, "api_error", "", "")
	}
	// Errors of the call itself are answered as usual.
	res, body := f.call(t, http.MethodPost, "/v1/refunds", url.Values{})
	expectBody(t, res, body, http.StatusBadRequest, "invalid_request_error", "parameter_missing", "payment_intent")
	f.set(t, func(k *Knobs) { k.API = "up" })
	res, _ = f.call(t, http.MethodPost, "/v1/refunds", refund, "Idempotency-Key", "key-1")
	if res.StatusCode != http.StatusInternalServerError || res.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("the repeated call answered %d %v, want the stored 500", res.StatusCode, res.Header)
	}
	if n := len(f.refunds(t, &stripe.RefundListParams{})); n != 1 {
		t.Errorf("there are %d refunds, want 1", n)
	}
}

// TestEmptyAnswers checks that a call has its effect although its answer is empty.
func TestEmptyAnswers(t *testing.T) {
	f := newStoppedFixture(t)
	f.set(t, func(k *Knobs) { k.API = "empty" })
	s, err := f.stripe.V1CheckoutSessions.Create(t.Context(), sessionParams())
	if err != nil || s.ID != "" {
		t.Errorf("the answer is %+v, %v; want an empty object", s, err)
	}
	if n := f.count(t, `SELECT count(*) FROM stripesim.sessions`); n != 1 {
		t.Errorf("there are %d sessions, want 1", n)
	}
	_, err = f.stripe.V1CheckoutSessions.Retrieve(t.Context(), "cs_test_none", nil)
	expectError(t, err, http.StatusNotFound,
		stripe.ErrorTypeInvalidRequest, stripe.ErrorCodeResourceMissing, "session")
}

// TestCalls checks the numbers of calls.
func TestCalls(t *testing.T) {
	f := newStoppedFixture(t)
	paid := f.paid(t) // creates and retrieves a session
	f.retrieve(t, paid.ID)
	f.call(t, http.MethodGet, "/v1/checkout/sessions/cs_test_none", nil)
	f.set(t, func(k *Knobs) { k.API = "loses_answers" })
	fresh := newClient(t, f.url, testKey) // a request over a connection that was used before would be repeated
	if _, err := fresh.V1CheckoutSessions.Expire(t.Context(), paid.ID, nil); err == nil {
		t.Error("an answer arrived")
	}
	var got struct{ Calls []Calls }
	_, body := f.send(t, http.MethodGet, "/sim/calls", "", "")
	testenv.Must(t, json.Unmarshal([]byte(body), &got))
	want := []Calls{
		{"GET /v1/checkout/sessions/{id}", 200, 2}, {"GET /v1/checkout/sessions/{id}", 404, 1},
		{"POST /v1/checkout/sessions", 200, 1}, {"POST /v1/checkout/sessions/{id}/expire", 0, 1},
	}
	if !slices.Equal(got.Calls, want) {
		t.Errorf("the calls are %+v, want %+v", got.Calls, want)
	}
}
