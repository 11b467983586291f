package stripesim

import (
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stripe/stripe-go/v85"

	"example.com/shop/internal/testenv"
)

// expiry is when the sessions of [fixture.createWithKey] expire: equal in each call, because a key belongs to one
// request.
var expiry = time.Now().Add(2 * time.Hour).Unix()

func (f *fixture) createWithKey(
	t testing.TB, key string, change func(*stripe.CheckoutSessionCreateParams),
) (*stripe.CheckoutSession, error) {
	t.Helper()
	p := sessionParams()
	p.ExpiresAt = stripe.Int64(expiry)
	change(p)
	p.SetIdempotencyKey(key)
	return f.stripe.V1CheckoutSessions.Create(t.Context(), p)
}

func unchanged(*stripe.CheckoutSessionCreateParams) {}

func replayed(s *stripe.CheckoutSession) bool {
	return s.LastResponse.Header.Get("Idempotent-Replayed") == "true"
}

func TestSameKeyReplaysAnswer(t *testing.T) {
	f := newFixture(t)
	first, err := f.createWithKey(t, "key-1", unchanged)
	testenv.Must(t, err)
	if replayed(first) || first.LastResponse.IdempotencyKey != "key-1" {
		t.Errorf("the header of the first answer is %v", first.LastResponse.Header)
	}
	f.submit(t, first.ID, "pay") // the answer stays that of the first request
	second, err := f.createWithKey(t, "key-1", unchanged)
	testenv.Must(t, err)
	if !replayed(second) || string(second.LastResponse.RawJSON) != string(first.LastResponse.RawJSON) {
		t.Errorf("the second answer is %v %s, want the first one again: %s",
			second.LastResponse.Header, second.LastResponse.RawJSON, first.LastResponse.RawJSON)
	}
	if second.LastResponse.RequestID == first.LastResponse.RequestID {
		t.Errorf("both requests have the id %s", first.LastResponse.RequestID)
	}
	third, err := f.createWithKey(t, "key-2", unchanged)
	testenv.Must(t, err)
	if third.ID == first.ID || replayed(third) {
		t.Errorf("another key returned the session of the first one")
	}
}

func TestSameKeyOfOtherRequest(t *testing.T) {
	f := newFixture(t)
	s, err := f.createWithKey(t, "key", unchanged)
	testenv.Must(t, err)
	_, err = f.createWithKey(t, "key", func(p *stripe.CheckoutSessionCreateParams) {
		p.ClientReferenceID = stripe.String("2")
	})
	expectError(t, err, http.StatusBadRequest, stripe.ErrorTypeIdempotency, "", "")

	expire := &stripe.CheckoutSessionExpireParams{}
	expire.SetIdempotencyKey("key")
	_, err = f.stripe.V1CheckoutSessions.Expire(t.Context(), s.ID, expire)
	expectError(t, err, http.StatusBadRequest, stripe.ErrorTypeIdempotency, "", "")
	if got := f.retrieve(t, s.ID); got.Status != stripe.CheckoutSessionStatusOpen {
		t.Errorf("the session is %s, want open", got.Status)
	}
}

// TestReplayAfterTheLimitsOfExpiresAt repeats a request whose expires_at would no longer be valid.
func TestReplayAfterTheLimitsOfExpiresAt(t *testing.T) {
	f := newFixture(t)
	form := url.Values{
		"mode": {"payment"}, "success_url": {"https://shop.example/"}, "line_items[0][quantity]": {"1"},
		"expires_at": {"1000"},
		"line_items[0][price_data][product_data][name]": {"Chair"}, "line_items[0][price_data][currency]": {"eur"},
		"line_items[0][price_data][unit_amount]": {"1000"},
	}
	parsed, err := parseForm(form.Encode())
	testenv.Must(t, err)
	_, err = f.sim.db.Exec(t.Context(), `
		INSERT INTO stripesim.idempotency_keys (key, request, status, body) VALUES ($1, $2, 200, '{}')`,
		"key", "POST /v1/checkout/sessions?"+parsed.canonical())
	testenv.Must(t, err)
	res, body := f.call(t, http.MethodPost, "/v1/checkout/sessions", form, "Idempotency-Key", "key")
	if res.StatusCode != http.StatusOK || body != "{}" || res.Header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("answered %d %s", res.StatusCode, body)
	}
}

// TestRejectedRequestsAreNotStored repeats requests that were not executed, under the same key.
func TestRejectedRequestsAreNotStored(t *testing.T) {
	f := newFixture(t)
	_, err := f.createWithKey(t, "invalid", func(p *stripe.CheckoutSessionCreateParams) { p.Mode = nil })
	expectError(t, err, http.StatusBadRequest,
		stripe.ErrorTypeInvalidRequest, stripe.ErrorCodeParameterMissing, "mode")
	_, err = f.createWithKey(t, "invalid", unchanged)
	testenv.Must(t, err)

	f.set(t, func(k *Knobs) { k.Sessions = "refuse" })
	_, err = f.createWithKey(t, "rejected", unchanged)
	expectError(t, err, http.StatusBadRequest, stripe.ErrorTypeInvalidRequest, "", "")
	f.set(t, func(k *Knobs) { k.Sessions = "accept"; k.Key = "sk_test_rotated" })
	_, err = f.createWithKey(t, "rejected", unchanged)
	expectError(t, err, http.StatusUnauthorized, stripe.ErrorTypeInvalidRequest, "", "")
	f.set(t, func(k *Knobs) { k.Key = testKey })
	s, err := f.createWithKey(t, "rejected", unchanged)
	testenv.Must(t, err)
	if replayed(s) {
		t.Error("a request that was not executed was replayed")
	}
}

// TestRejectionsByStateAreStored repeats a rejected request after the state has changed.
func TestRejectionsByStateAreStored(t *testing.T) {
	f := newFixture(t)
	s := f.paid(t)
	send := func() error {
		p := &stripe.RefundCreateParams{
			PaymentIntent: stripe.String(s.PaymentIntent.ID), Amount: stripe.Int64(sessionTotal),
		}
		p.SetIdempotencyKey("refund")
		_, err := f.stripe.V1Refunds.Create(t.Context(), p)
		return err
	}
	f.set(t, func(k *Knobs) { k.Refunds = "pending" })
	_, err := f.refund(t, s.PaymentIntent.ID, sessionTotal)
	testenv.Must(t, err)
	expectError(t, send(), http.StatusBadRequest, stripe.ErrorTypeInvalidRequest,
		stripe.ErrorCodeChargeAlreadyRefunded, "")
	f.set(t, func(k *Knobs) { k.Refunds = "fail" }) // the first refund leaves its amount again
	testenv.Eventually(t, "a failed refund", func() bool {
		return f.count(t, `SELECT count(*) FROM stripesim.refunds WHERE status = 'failed'`) == 1
	})
	expectError(t, send(), http.StatusBadRequest, stripe.ErrorTypeInvalidRequest,
		stripe.ErrorCodeChargeAlreadyRefunded, "")
	if n := f.count(t, `SELECT count(*) FROM stripesim.refunds`); n != 1 {
		t.Errorf("there are %d refunds, want 1", n)
	}
}

func TestServerErrorIsStored(t *testing.T) {
	f := newFixture(t)
	before, err := f.createWithKey(t, "before", unchanged)
	testenv.Must(t, err)
	f.set(t, func(k *Knobs) { k.API = "errors" })
	for _, key := range []string{"key", "before"} {
		_, err := f.createWithKey(t, key, unchanged)
		expectError(t, err, http.StatusInternalServerError, stripe.ErrorTypeAPI, "", "")
	}
	_, err = f.stripe.V1CheckoutSessions.Retrieve(t.Context(), before.ID, nil)
	expectError(t, err, http.StatusInternalServerError, stripe.ErrorTypeAPI, "", "")
	f.set(t, func(k *Knobs) { k.API = "up" })

	_, err = f.createWithKey(t, "key", unchanged)
	expectError(t, err, http.StatusInternalServerError, stripe.ErrorTypeAPI, "", "")
	after, err := f.createWithKey(t, "before", unchanged)
	testenv.Must(t, err)
	if after.ID != before.ID || !replayed(after) {
		t.Error("the stored answer of a key changed while the API answered with errors")
	}
	if len(f.ledger(t)) != 1 {
		t.Errorf("the ledger has %d sessions, want only the one from before the errors", len(f.ledger(t)))
	}
}

func TestConcurrentCreatesWithOneKey(t *testing.T) {
	f := newFixture(t)
	const requests = 16
	ids, errs := make([]string, requests), make([]error, requests)
	var senders sync.WaitGroup
	for i := range requests {
		senders.Go(func() {
			s, err := f.createWithKey(t, "key", unchanged)
			if errs[i] = err; err == nil {
				ids[i] = s.ID
			}
		})
	}
	senders.Wait()
	ledger := f.ledger(t)
	if len(ledger) != 1 {
		t.Fatalf("%d sessions were created, want 1", len(ledger))
	}
	for i := range requests {
		if errs[i] != nil {
			expectError(t, errs[i], http.StatusConflict, stripe.ErrorTypeIdempotency,
				stripe.ErrorCodeIdempotencyKeyInUse, "")
		} else if _, ok := ledger[ids[i]]; !ok {
			t.Errorf("request %d got the session %s, which the ledger does not have", i, ids[i])
		}
	}
}

// TestKeyInUse holds a key as another request under way does.
func TestKeyInUse(t *testing.T) {
	f := newFixture(t)
	tx, err := f.sim.db.Begin(t.Context())
	testenv.Must(t, err)
	defer tx.Rollback(t.Context())
	_, err = findAnswer(t.Context(), tx, "key", "another request")
	testenv.Must(t, err)
	_, err = f.createWithKey(t, "key", unchanged)
	expectError(t, err, http.StatusConflict, stripe.ErrorTypeIdempotency, stripe.ErrorCodeIdempotencyKeyInUse, "")
	testenv.Must(t, tx.Rollback(t.Context()))
	_, err = f.createWithKey(t, "key", unchanged)
	testenv.Must(t, err)
}

func TestKeysAreForgottenAfterADay(t *testing.T) {
	f := newFixture(t)
	first, err := f.createWithKey(t, "key", unchanged)
	testenv.Must(t, err)
	age := func(hours int) {
		_, err := f.sim.db.Exec(t.Context(), `
			UPDATE stripesim.idempotency_keys SET created_at = now() - $1 * interval '1 hour'`, hours)
		testenv.Must(t, err)
		testenv.Must(t, f.sim.deleteOldKeys(t.Context()))
	}
	age(23)
	if s, err := f.createWithKey(t, "key", unchanged); err != nil || s.ID != first.ID {
		t.Errorf("after 23 h the key returned %v, %v; want the first session", s, err)
	}
	age(25)
	if s, err := f.createWithKey(t, "key", unchanged); err != nil || s.ID == first.ID {
		t.Errorf("after 25 h the key returned %v, %v; want a new session", s, err)
	}
}

func TestKeyHasNoEffectOnGet(t *testing.T) {
	f := newFixture(t)
	s := f.create(t)
	for range 2 {
		res, body := f.call(t, http.MethodGet, "/v1/checkout/sessions/"+s.ID, nil, "Idempotency-Key", "key")
		if res.StatusCode != http.StatusOK || res.Header.Get("Idempotent-Replayed") != "" {
			t.Errorf("answered %d %v %s", res.StatusCode, res.Header, body)
		}
	}
}

func TestTooLongKey(t *testing.T) {
	f := newFixture(t)
	key := strings.Repeat("k", 256) // stripe-go does not send such a key
	res, body := f.call(t, http.MethodPost, "/v1/refunds", url.Values{}, "Idempotency-Key", key)
	expectBody(t, res, body, http.StatusBadRequest, "idempotency_error", "", "")
	_, err := f.createWithKey(t, key[:255], unchanged)
	testenv.Must(t, err)
}
