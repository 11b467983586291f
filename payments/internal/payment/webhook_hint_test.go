package payment_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/testenv"
	"example.com/shop/payments/internal/payment"
	"example.com/shop/payments/internal/provider"
)

// reconfigure replaces the service of a shop by one with a deployment and a mode, and returns its log.
func (s *shop) reconfigure(t *testing.T, deployment, mode string) *bytes.Buffer {
	t.Helper()
	log := &bytes.Buffer{}
	s.metrics = prometheus.NewRegistry()
	cfg := config
	cfg.Deployment = deployment
	s.webhooks.Deployment, s.webhooks.Live = deployment, mode == "live"
	logger := slog.New(slog.NewJSONHandler(log, nil))
	calls := provider.NewCalls(s.provider, provider.CallsConfig{}, logger, prometheus.NewRegistry())
	s.connect(calls, s.notified.Notify, cfg, logger, s.metrics)
	s.addRoutes(t, logger, s.metrics)
	return log
}

// sessionObject returns the object of an event about a session.
func sessionObject(id, reference, deployment string) []byte {
	return fmt.Appendf(nil, `{"id":%q,"object":"checkout.session","client_reference_id":%q,"metadata":{"deployment":%q}}`, id, reference, deployment)
}

// TestVerifiedEventsGet200 delivers events that PostgreSQL would refuse, or that name a session of another attempt. An
// answer other than 200 would make the provider send them again for days, and disable the endpoint.
func TestVerifiedEventsGet200(t *testing.T) {
	s := newShop(t)
	_, a := s.placeOpen(t)
	_, b := s.placeOpen(t)
	creating := s.place(t)
	s.exec(t, `INSERT INTO payment_attempts (id, order_id, number, amount_cents, currency, opened_at, closes_at, session_expires_at, next_check)
		SELECT gen_random_uuid(), $1, 1, 1000, 'eur', now(), later, later, now() + interval '1 min' FROM (SELECT now() + interval '1 hour' AS later) t`, creating.ID)
	attempt := testenv.Query[string](t, s.db, `SELECT id::text FROM payment_attempts WHERE order_id = $1`, creating.ID)
	s.settles.Take()
	const completed = "checkout.session.completed"
	huge := strings.Repeat("x", 100_000)
	for name, body := range map[string][]byte{
		"NUL in the id":         []byte(`{"id":"evt_\u0000","type":"customer.created","data":{"object":{}}}`),
		"NUL in the type":       []byte(`{"id":"evt_1","type":"customer\u0000","data":{"object":{}}}`),
		"NUL in the session":    []byte(`{"id":"evt_2","type":"` + completed + `","data":{"object":{"id":"cs_\u0000","client_reference_id":"` + attempt + `"}}}`),
		"no UTF-8":              []byte("{\"id\":\"evt_\xff\",\"type\":\"customer.created\",\"data\":{\"object\":{}}}"),
		"a huge id":             eventBody("evt_"+huge, "customer.created", "v", []byte(`{}`)),
		"a huge type":           eventBody("evt_4", "customer."+huge, "v", []byte(`{}`)),
		"a huge session":        eventBody("evt_5", completed, "v", sessionObject("cs_"+huge, attempt, "")),
		"no type":               []byte(`{"id":"evt_6"}`),
		"no object":             []byte(`{}`),
		"an id of another type": []byte(`{"id":7,"type":[]}`),
		"not an event":          []byte(`not JSON`),
	} {
		t.Run(name, func(t *testing.T) {
			s.deliver(t, body)
			s.deliver(t, body)
		})
	}
	if n := webhooks(t, s.metrics, "matched") + webhooks(t, s.metrics, "unmatched"); n != 0 || len(s.settles.Take()) != 0 {
		t.Errorf("%v events name an attempt of this shop, want none; no task may be published", n)
	}
	if n := webhooks(t, s.metrics, "ignored"); n != 22 {
		t.Errorf("%v webhooks are counted as ignored, want 22", n)
	}

	// The session of a belongs to a. An event says that it is that of an attempt that has none, and that of b.
	session := s.entry(t, a.ID).Session
	s.deliver(t, eventBody("evt_creating", completed, "v", sessionObject(session, attempt, "")))
	s.deliver(t, eventBody("evt_b", completed, "v", sessionObject(session, b.ID.String(), "")))
	if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM payment_attempts WHERE session_id = $1`, session); n != 1 {
		t.Errorf("%d attempts have the session, want 1", n)
	}
	s.check(t)
}

// TestUnknownSessionEnds checks an attempt that never got a session, and whose session, by an event, is one that the
// provider does not know. It must end like any attempt without a session.
func TestUnknownSessionEnds(t *testing.T) {
	for _, session := range []string{"cs_unknown", "another attempt's"} {
		t.Run(session, func(t *testing.T) {
			s := newShop(t)
			if session != "cs_unknown" {
				_, other := s.placeOpen(t)
				session = s.entry(t, other.ID).Session
				s.exec(t, `UPDATE payment_attempts SET session_id = 'cs_other' WHERE id = $1`, other.ID)
			}
			o := s.place(t)
			s.exec(t, `INSERT INTO payment_attempts (id, order_id, number, amount_cents, currency, opened_at, closes_at, session_expires_at, next_check)
				SELECT gen_random_uuid(), $1, 1, 1000, 'eur', now(), later, later, now() + interval '10 s' FROM (SELECT now() + interval '1 hour' AS later) t`, o.ID)
			s.exec(t, `UPDATE orders SET hold_until = expires_at + interval '2 min' WHERE id = $1`, o.ID)
			id := testenv.Query[uuid.UUID](t, s.db, `SELECT id FROM payment_attempts WHERE order_id = $1`, o.ID)
			event := eventBody("evt_1", "checkout.session.completed", "v", sessionObject(session, id.String(), ""))
			s.deliver(t, event)
			s.settle(t, o.ID)
			s.shift(t, o.ID, 31_000_000_000)
			s.settleNow(t, o.ID)
			s.wantAttempt(t, o, id, "closed")

			// The closed attempt gets such an event, too.
			s.deliver(t, bytes.Replace(event, []byte("evt_1"), []byte("evt_2"), 1))
			s.settle(t, o.ID)
			if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM payment_attempts WHERE order_id = $1 AND next_check IS NOT NULL`, o.ID); n != 0 {
				t.Errorf("the closed attempt is still checked")
			}
		})
	}
}

// TestPaidEventOfUnknownAttempt delivers an event about a payment that the database does not have, as after a restore.
func TestPaidEventOfUnknownAttempt(t *testing.T) {
	s := newShop(t)
	log := s.reconfigure(t, "north", "test")
	attempt := uuid.NewString()
	for _, id := range []string{"evt_1", "evt_2"} {
		s.deliver(t, eventBody(id, "checkout.session.completed", "v", sessionObject("cs_lost", attempt, "north")))
	}
	if n := webhooks(t, s.metrics, "unmatched"); n != 2 {
		t.Errorf("%v webhooks are counted as unmatched, want 2", n)
	}
	if got := log.String(); strings.Count(got, `"level":"ERROR"`) != 2 || !strings.Contains(got, attempt) || !strings.Contains(got, "cs_lost") {
		t.Errorf("the log has no two errors with the attempt and the session:\n%s", got)
	}
}

// TestEventsOfOthers delivers events of another mode and of another deployment about an attempt of this database,
// which a copy of the database has, too.
func TestEventsOfOthers(t *testing.T) {
	s := newShop(t)
	_, a := s.placeOpen(t)
	s.settles.Take()
	s.reconfigure(t, "north", "live")
	session := sessionObject(s.entry(t, a.ID).Session, a.ID.String(), "north")
	event := func(id string, live bool, object []byte) []byte {
		return fmt.Appendf(nil, `{"id":%q,"type":"checkout.session.completed","livemode":%t,"data":{"object":%s}}`, id, live, object)
	}
	calls := s.called("retrieve")
	s.deliver(t, event("evt_test", false, session))
	s.deliver(t, event("evt_south", true, bytes.Replace(session, []byte("north"), []byte("south"), 1)))
	if n := webhooks(t, s.metrics, "ignored"); n != 2 {
		t.Errorf("%v webhooks are counted as ignored, want 2", n)
	}
	if n := s.called("retrieve") - calls; n != 0 {
		t.Errorf("the provider was asked %d times, want never", n)
	}
	s.deliver(t, event("evt_live", true, session))
	if n := s.called("retrieve") - calls; n != 1 {
		t.Errorf("after the event of this mode and deployment the provider was asked %d times, want once", n)
	}
}

// TestOwnExpireEventMakesNoCall delivers the event of the shop's own expire.
func TestOwnExpireEventMakesNoCall(t *testing.T) {
	s := newShop(t)
	o, a := s.placeOpen(t)
	session := s.entry(t, a.ID).Session
	s.shiftToDeadline(t, o.ID, 0)
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "closed")
	s.settles.Take()
	s.deliver(t, eventBody("evt_1", "checkout.session.expired", "v", sessionObject(session, a.ID.String(), "")))
	if msgs := s.settles.Take(); len(msgs) != 0 {
		t.Errorf("published tasks: %v, want none", msgs)
	}
	if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM payment_attempts WHERE next_check IS NOT NULL`); n != 0 {
		t.Errorf("%d attempts wait for a check, want none", n)
	}
}

// TestWantedEventsAreDocumented compares the events that the shop reads with those of docs/payments.md.
func TestWantedEventsAreDocumented(t *testing.T) {
	docs, err := os.ReadFile("../../docs/payments.md")
	testenv.Must(t, err)
	for _, kind := range payment.WantedEvents {
		if !strings.Contains(string(docs), "`"+kind+"`") {
			t.Errorf("docs/payments.md does not name the event %s", kind)
		}
	}
}
