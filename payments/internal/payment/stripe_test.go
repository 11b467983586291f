package payment_test

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/provider"
)

// TestStripeStaysInItsFiles checks that only the files of the provider import Stripe's package, and name the types and
// fields of its events. The tests of webhooks make such events, and sign them.
func TestStripeStaysInItsFiles(t *testing.T) {
	files, err := filepath.Glob("*.go")
	testenv.Must(t, err)
	words := regexp.MustCompile(`github\.com/stripe/|checkout\.session|client_reference_id|livemode`)
	inTests := regexp.MustCompile(`github\.com/stripe/stripe-go/v\d+"`)
	for _, file := range files {
		text, err := os.ReadFile(file)
		testenv.Must(t, err)
		if strings.HasPrefix(file, "stripe") || strings.HasPrefix(file, "at_stripe") {
			continue
		}
		words := words
		if strings.HasSuffix(file, "_test.go") {
			words = inTests
		}
		if word := words.Find(text); word != nil {
			t.Errorf("%s has %q, want only stripe*.go to have it", file, word)
		}
	}
}

// newAnswers returns a client of a server that gives always the same answer.
func newAnswers(t *testing.T, status int, header http.Header, body string) *provider.Stripe {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for key, values := range header {
			w.Header()[key] = values
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body))
	}))
	t.Cleanup(server.Close)
	client := provider.NewStripe(server.URL, apiKey)
	t.Cleanup(client.Close)
	return client
}

// callAll makes each call once, and returns the errors by operation.
func callAll(t *testing.T, p provider.Provider) map[string]error {
	t.Helper()
	errs := map[string]error{}
	_, errs["create"] = p.Create(t.Context(), provider.Checkout{Currency: "eur", AmountCents: 100, ExpiresAt: time.Now()})
	_, errs["retrieve"] = p.Retrieve(t.Context(), "cs_1")
	_, errs["expire"] = p.Expire(t.Context(), "cs_1")
	_, errs["list_refunds"] = p.Refunds(t.Context(), "pi_1")
	_, errs["refund"] = p.Refund(t.Context(), provider.Return{Intent: "pi_1", AmountCents: 1, Key: "k"})
	_, errs["list_movements"] = p.Movements(t.Context(), time.Now(), time.Now(), "")
	_, errs["list_sessions"] = p.OpenSessions(t.Context(), time.Now(), "")
	return errs
}

// TestClassify checks what each answer of Stripe means.
func TestClassify(t *testing.T) {
	replayed := http.Header{"Idempotent-Replayed": {"true"}}
	for _, test := range []struct {
		status int
		kind   string // of the error; "" is invalid_request_error
		code   string
		header http.Header
		class  provider.ErrorClass
		cause  provider.Cause
	}{
		{status: 500, class: provider.NoAnswer},
		{status: 503, class: provider.NoAnswer},
		{status: 500, header: replayed, class: provider.Replayed},
		{status: 429, code: "rate_limit", class: provider.Busy, cause: provider.TooManyCalls},
		{status: 429, code: "lock_timeout", class: provider.Busy},
		{status: 409, code: "idempotency_key_in_use", class: provider.Busy, cause: provider.KeyInUse},
		{status: 400, kind: "idempotency_error", class: provider.Replayed},
		{status: 401, class: provider.Denied},
		{status: 403, class: provider.Denied},
		{status: 404, code: "resource_missing", class: provider.Missing},
		{status: 400, code: "resource_missing", class: provider.Missing},
		{status: 400, code: "balance_insufficient", class: provider.Busy, cause: provider.LowBalance},
		{status: 400, code: "charge_disputed", class: provider.Refused},
		{status: 400, code: "refund_disputed_payment", class: provider.Refused},
		{status: 400, code: "charge_already_refunded", class: provider.Refused},
		{status: 400, code: "amount_too_small", class: provider.Refused},
		{status: 402, code: "card_declined", class: provider.Refused},
		{status: 400, header: replayed, class: provider.Refused},
	} {
		body := fmt.Sprintf(`{"error":{"type":%q,"code":%q,"message":"no"}}`, cmp.Or(test.kind, "invalid_request_error"), test.code)
		for operation, err := range callAll(t, newAnswers(t, test.status, test.header, body)) {
			e, ok := errors.AsType[*provider.Error](err)
			if !ok || e.Class != test.class || e.Cause != test.cause || e.Operation != operation {
				t.Errorf("%s: status %d, code %q: %#v, want class %d and cause %q", operation, test.status, test.code, err, test.class, test.cause)
			}
		}
	}
}

// TestUnusableAnswers checks that an answer that reports success without its object is none: the object may exist.
func TestUnusableAnswers(t *testing.T) {
	for _, body := range []string{
		`{}`, `not JSON`, `<html>`, `{"object":"checkout.session"}`,
		`{"id":"cs_1","status":"open"}`,                                             // an open session without a URL
		`{"id":"cs_1","url":"https://x.example","payment_status":"paid"}`,           // a paid one without an intent
		`{"url":"/v1/refunds","data":[{"status":"succeeded"}],"status":"open"}`,     // a refund without an id
		`{"data":[{"id":"re_1","status":"succeeded"}],"status":"open","object":""}`, // not a list
	} {
		for operation, err := range callAll(t, newAnswers(t, http.StatusOK, nil, body)) {
			if strings.HasPrefix(body, `{"id"`) && strings.Contains(operation, "refund") {
				continue // these two are about sessions
			}
			if strings.Contains(body, `"url"`) && (operation == "list_movements" || operation == "list_sessions") {
				continue // with a URL it is a list
			}
			if e, ok := errors.AsType[*provider.Error](err); !ok || e.Class != provider.NoAnswer {
				t.Errorf("%s: the answer 200 %s gives %#v, want no-answer", operation, body, err)
			}
		}
	}
}

// TestAnswersWithoutASession has a proxy answer `200 {}` to each call. The attempt stays creating, is closed like any
// other whose answer was lost, and the next one works.
func TestAnswersWithoutASession(t *testing.T) {
	s := newShop(t)
	o := s.place(t)
	empty := newAnswers(t, http.StatusOK, nil, `{}`)
	works := s.provider
	s.provider = empty
	s.resetBreaker(t)
	if _, _, err := s.Open(t.Context(), o.CustomerID, o.ID); parttest.ClassOf(err) != attempt.ProviderAway {
		t.Fatalf("Open returns %v, want provider-unavailable", err)
	}
	a := s.latest(t, o)
	s.wantAttempt(t, o, a.ID, "creating")
	s.shift(t, o.ID, 31*time.Second)
	s.settleNow(t, o.ID)
	s.wantAttempt(t, o, a.ID, "closed")

	s.provider = works
	s.resetBreaker(t)
	next := s.open(t, o)
	s.provider = empty
	s.resetBreaker(t)
	s.settleNow(t, o.ID) // retrieve
	s.wantAttempt(t, o, next.ID, "open")
	s.shiftToDeadline(t, o.ID, time.Second)
	s.settle(t, o.ID) // expire
	s.wantAttempt(t, o, next.ID, "open closing")
	s.provider = works
	s.resetBreaker(t)
	s.settleNow(t, o.ID)
	s.wantAttempt(t, o, next.ID, "closed")
	s.cancelDue(t, o.ID)
	s.check(t)
}

// TestClock checks that the client learns the provider's clock from its answers, also from one that is an error.
func TestClock(t *testing.T) {
	for _, ahead := range []time.Duration{0, 40 * time.Minute, -40 * time.Minute} {
		date := http.Header{"Date": {time.Now().Add(ahead).UTC().Format(http.TimeFormat)}}
		p := newAnswers(t, http.StatusBadRequest, date, `{"error":{"type":"invalid_request_error"}}`)
		if d := time.Until(p.Clock()); !about(d, 0) {
			t.Errorf("before the first answer, the provider's clock is %v ahead; want 0", d)
		}
		if _, err := p.Retrieve(t.Context(), "cs_1"); err == nil {
			t.Error("Retrieve succeeds, want an error")
		}
		if d := time.Until(p.Clock()); (d - ahead).Abs() > 2*time.Second {
			t.Errorf("the provider's clock is %v ahead, want %v", d, ahead)
		}
	}
}
