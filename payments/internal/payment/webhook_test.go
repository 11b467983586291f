package payment_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stripe/stripe-go/v85/webhook"

	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/payment"
)

// TestRejectedWebhooks sends webhooks that are not the provider's to a handler whose database is closed. A request that
// reaches the database answers 500 here.
func TestRejectedWebhooks(t *testing.T) {
	gdb, db := parttest.OpenDB(t, testenv.Postgres(t), 1)
	testenv.Must(t, db.Close())
	newHandler := func(secrets ...string) (*shop, *prometheus.Registry) {
		reg := prometheus.NewRegistry()
		log := slog.New(slog.DiscardHandler)
		s := &shop{gorm: gdb, orderDB: order.NewStore(gdb), webhooks: payment.Webhooks{Secrets: strings.Join(secrets, ",")}}
		s.connect(nil, nil, attempt.Config{}, log, reg)
		s.addRoutes(t, log, reg)
		return s, reg
	}
	s, reg := newHandler(secret, oldSecret)
	unset, _ := newHandler()

	now := time.Now()
	body := eventBody("evt_1", "checkout.session.completed", "v", sessionObject("cs_1", uuid.NewString(), ""))
	good := signature(body, secret, now)
	changed := bytes.Replace(body, []byte("evt_1"), []byte("evt_2"), 1)
	long := slices.Concat(body, bytes.Repeat([]byte(" "), 256<<10))
	for name, test := range map[string]struct {
		shop      *shop
		body      []byte
		signature string
		want      rest.Class
	}{
		"no signature":                     {s, body, "", payment.BadSignature},
		"an empty scheme":                  {s, body, "t=,v1=", payment.BadSignature},
		"no time":                          {s, body, strings.Split(good, ",")[1], payment.BadSignature},
		"no v1":                            {s, body, strings.Replace(good, "v1", "v0", 1), payment.BadSignature},
		"wrong secret":                     {s, body, signature(body, "whsec_wrong", now), payment.BadSignature},
		"no secret configured":             {unset, body, signature(body, "", now), payment.BadSignature},
		"too old":                          {s, body, signature(body, secret, now.Add(-6*time.Minute)), payment.BadSignature},
		"another time than signed":         {s, body, strings.Replace(good, fmt.Sprint(now.Unix()), fmt.Sprint(now.Unix()-1), 1), payment.BadSignature},
		"one byte changed":                 {s, changed, good, payment.BadSignature},
		"a byte more":                      {s, append(bytes.Clone(body), ' '), good, payment.BadSignature},
		"over 256 KiB, signed":             {s, long, signature(long, secret, now), rest.BodyTooLarge},
		"a right one reaches the database": {s, body, good, rest.Internal},
		"with a secret that is replaced":   {s, body, signature(body, oldSecret, now), rest.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			a := test.shop.post(t, test.body, test.signature)
			want := `"type":"/problems/` + test.want.Code + `"`
			if a.Code != test.want.Status || !strings.Contains(a.Body.String(), want) {
				t.Errorf("the answer is %d %s, want %d and %s", a.Code, a.Body, test.want.Status, want)
			}
			if part := testenv.FindLeak(a.Body.Bytes()); part != "" {
				t.Errorf("the problem discloses %q: %s", part, a.Body)
			}
		})
	}
	if n := webhooks(t, reg, "rejected"); n != 10 {
		t.Errorf("%v webhooks are counted as rejected, want 10", n)
	}
}

// webhooks returns the number of webhooks with a result.
func webhooks(t *testing.T, reg *prometheus.Registry, result string) float64 {
	t.Helper()
	families, err := reg.Gather()
	testenv.Must(t, err)
	for _, f := range families {
		if f.GetName() != "payment_webhooks_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == result {
				return m.GetCounter().GetValue()
			}
		}
	}
	t.Fatalf("there is no metric payment_webhooks_total of result %s", result)
	return 0
}

// TestForeignEvents checks that each verified event is answered with 200, and changes nothing if it is about nothing
// that the shop knows.
func TestForeignEvents(t *testing.T) {
	s := newShop(t)
	o, a := s.placeOpen(t)
	s.settles.Take()
	state := func() string {
		return testenv.Query[string](t, s.db, `SELECT json_agg(a)::text FROM payment_attempts a`)
	}
	before := state()
	session := func(reference string) []byte {
		return fmt.Appendf(nil, `{"id":"cs_1","object":"checkout.session","client_reference_id":%s}`, reference)
	}
	for name, test := range map[string]struct {
		eventType string
		object    []byte
	}{
		"an object of another type":       {"customer.created", []byte(`{"id":"cus_1"}`)},
		"an unknown attempt":              {"checkout.session.completed", session(`"` + uuid.NewString() + `"`)},
		"another application's reference": {"checkout.session.completed", session(`"cart 7"`)},
		"no reference":                    {"checkout.session.completed", session(`null`)},
		"a reference of another type":     {"checkout.session.completed", session(`7`)},
		"an attempt, but no session":      {"checkout.session.completed", fmt.Appendf(nil, `{"client_reference_id":%q}`, a.ID)},
		"an object that is no object":     {"checkout.session.completed", []byte(`[]`)},
		"a thin event of another API":     {"v1.billing.meter.error_report_triggered", []byte(`null`)},
	} {
		t.Run(name, func(t *testing.T) {
			ignored := webhooks(t, s.metrics, "ignored")
			s.deliver(t, eventBody("evt_1", test.eventType, "1999-01-01", test.object))
			if n := webhooks(t, s.metrics, "ignored") - ignored; n != 1 {
				t.Errorf("the event is counted as ignored %v times, want once", n)
			}
		})
	}
	for _, body := range []string{``, `[]`, `{}`, `{"id":7}`, `not JSON`} {
		s.deliver(t, []byte(body))
	}
	if after := state(); after != before || len(s.settles.Take()) > 0 {
		t.Errorf("the attempts have changed:\n%s\n%s", before, after)
	}
	s.wantAttempt(t, o, a.ID, "open")
}

// TestEventsOfOtherVersions checks that an event is understood although its other fields have other types.
func TestEventsOfOtherVersions(t *testing.T) {
	s := newShop(t)
	o, a := s.placeOpen(t)
	s.pay(t, a.CheckoutURL)
	e := s.entry(t, a.ID)
	s.deliver(t, fmt.Appendf(nil, `{"id":"evt_1","api_version":"2015-01-01","created":"yesterday","request":"req_1","type":"checkout.session.completed",
		"data":{"object":{"id":%q,"client_reference_id":%q,"amount_total":{"eur":10},"expires_at":"never","line_items":7}}}`, e.Session, a.ID))
	s.wantOrder(t, o, "paid")
}

// TestConcurrentDeliveries delivers an event several times at once. Its order is paid once, and a delivery after that
// asks nothing.
func TestConcurrentDeliveries(t *testing.T) {
	s := newShop(t)
	o, a := s.placeOpen(t)
	s.pay(t, a.CheckoutURL)
	s.settles.Take()
	body := s.events(t, a.ID)[0].body
	var deliveries sync.WaitGroup
	for range 8 {
		deliveries.Go(func() {
			if a := s.post(t, body, signature(body, secret, time.Now())); a.Code != http.StatusOK {
				t.Errorf("a delivery is answered with %d %s, want 200", a.Code, a.Body)
			}
		})
	}
	deliveries.Wait()
	s.wantOrder(t, o, "paid")
	calls := s.called("retrieve")
	s.deliver(t, body)
	if n := s.called("retrieve") - calls; n != 0 {
		t.Errorf("after the order was paid, the provider was asked %d times, want never", n)
	}
	if n := webhooks(t, s.metrics, "matched"); n != 9 {
		t.Errorf("%v webhooks are counted as matched, want 9", n)
	}
	s.check(t)
	if n, err := testutil.GatherAndCount(s.metrics, "payment_webhooks_total"); n != 4 || err != nil {
		t.Errorf("payment_webhooks_total has %d series, error %v; want 4", n, err)
	}
}

// event is an event at the provider.
type event struct {
	id, eventType string
	body          []byte // as webhooks carry it
}

// events returns the provider's events about a session or a payment intent, the oldest first, but those about charges.
func (s *shop) events(t testing.TB, attempt uuid.UUID) (all []event) {
	t.Helper()
	if s.mem != nil {
		return s.mem.events(attempt)
	}
	rows, err := s.simDB.QueryContext(t.Context(), `
		SELECT e.id, e.type, e.object
		FROM (SELECT seq, id, type, body->'data'->'object' AS object FROM stripesim.events) e
		WHERE e.type NOT LIKE 'charge.%' AND (e.object->>'client_reference_id' = $1
		   OR e.object->>'payment_intent' IN (SELECT payment_intent FROM stripesim.sessions WHERE client_reference_id = $1))
		ORDER BY seq`, attempt.String())
	testenv.Must(t, err)
	defer rows.Close()
	for rows.Next() {
		var e event
		var object []byte
		testenv.Must(t, rows.Scan(&e.id, &e.eventType, &object))
		e.body = eventBody(e.id, e.eventType, "2025-01-01.other", object)
		all = append(all, e)
	}
	testenv.Must(t, rows.Err())
	return all
}

func eventBody(id, eventType, version string, object []byte) []byte {
	return fmt.Appendf(nil, `{"id":%q,"object":"event","api_version":%q,"created":1,"type":%q,"data":{"object":%s}}`, id, version, eventType, object)
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
