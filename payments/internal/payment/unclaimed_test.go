package payment_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/payments/internal/payment"
)

// unclaimed adds a payment to the books that names this deployment, and an attempt that the database does not have. An
// operator has closed the incident.
func (s *booksShop) unclaimed(t *testing.T, intent string) {
	t.Helper()
	owner := payment.Owner{Deployment: "north", Order: uuid.NewString(), Attempt: uuid.NewString()}
	s.mem.sessions["cs_"+intent] = &payment.Session{Owner: owner, Paid: true, Intent: intent, Currency: "eur"}
	s.book(payment.Captured, intent, "ch_"+intent, 1000).Owner = owner
	s.read(t)
	s.exec(t, `UPDATE payment_incidents SET closed_at = now(), actor = 'Ada', note = 'looked'`)
}

func (s *booksShop) wantUnclaimed(t *testing.T, intent, want string) {
	t.Helper()
	if got := testenv.Query[string](t, s.db, `SELECT state FROM unclaimed_payments WHERE intent = $1`, intent); got != want {
		t.Errorf("the unclaimed payment is %s, want %s", got, want)
	}
}

// TestUnclaimedRefundIsRepeated loses the answer to the refund of an unclaimed payment. The repeated request returns the
// money once.
func TestUnclaimedRefundIsRepeated(t *testing.T) {
	s := newBooksShop(t)
	s.unclaimed(t, "pi_lost")
	s.mem.hook("refund", memoryHook{after: func() error { return failed(payment.NoAnswer, "") }})
	if err := s.books.Decide(t.Context(), "pi_lost", false, "Ada", "not shipped"); parttest.ClassOf(err) != payment.ProviderAway {
		t.Errorf("Decide returns %v, want provider-unavailable", err)
	}
	s.wantUnclaimed(t, "pi_lost", "refunding")
	s.mem.hook("refund", memoryHook{})
	if err := s.books.Decide(t.Context(), "pi_lost", true, "Ada", "shipped"); parttest.ClassOf(err) != payment.NotUnclaimed {
		t.Errorf("to keep it then returns %v, want not-unclaimed", err)
	}
	testenv.Must(t, s.books.Decide(t.Context(), "pi_lost", false, "Ada", "not shipped"))
	if n := len(s.mem.refunds["pi_lost"]); n != 1 {
		t.Errorf("the provider has %d refunds, want 1", n)
	}
	s.wantUnclaimed(t, "pi_lost", "refunded")
	if err := s.books.Decide(t.Context(), "pi_lost", false, "Ada", "again"); parttest.ClassOf(err) != payment.NotUnclaimed {
		t.Errorf("a third refund returns %v, want not-unclaimed", err)
	}
	if c := wantReport(t, s.read(t), 0, 0, true); c.UnclaimedCents != 0 {
		t.Errorf("%d cents are unclaimed, want 0", c.UnclaimedCents)
	}
}

// TestUnclaimedIsReturnedByHand has the money of an unclaimed payment returned at the provider before the action.
func TestUnclaimedIsReturnedByHand(t *testing.T) {
	s := newBooksShop(t)
	s.unclaimed(t, "pi_lost")
	s.mem.refunds["pi_lost"] = []*payment.ProviderRefund{{ID: "re_hand", AmountCents: 1000, State: payment.Confirmed}}
	testenv.Must(t, s.books.Decide(t.Context(), "pi_lost", false, "Ada", "not shipped"))
	if n := s.mem.count("refund"); n != 0 {
		t.Errorf("%d refunds were sent, want none", n)
	}
	s.wantUnclaimed(t, "pi_lost", "refunded")
}

// TestUnclaimedIsReturnedByHandInPart has a part of the money returned at the provider after the last report. Once a report
// has it, the action returns the rest.
func TestUnclaimedIsReturnedByHandInPart(t *testing.T) {
	s := newBooksShop(t)
	s.unclaimed(t, "pi_lost")
	s.mem.byHand(t, "pi_lost", 400)
	if err := s.books.Decide(t.Context(), "pi_lost", false, "Ada", "not shipped"); parttest.ClassOf(err) != payment.NotUnclaimed {
		t.Errorf("before the report Decide returns %v, want not-unclaimed", err)
	}
	s.read(t)
	s.wantUnclaimed(t, "pi_lost", "open")
	testenv.Must(t, s.books.Decide(t.Context(), "pi_lost", false, "Ada", "not shipped"))
	if c := wantReport(t, s.read(t), 0, 0, true); c.UnclaimedCents != 0 {
		t.Errorf("%d cents are unclaimed, want 0", c.UnclaimedCents)
	}
	s.wantUnclaimed(t, "pi_lost", "refunded")
}

// TestUnclaimedRefundFailsLater has the refund of an unclaimed payment fail after a report. The payment is unclaimed again,
// and the money is sent again.
func TestUnclaimedRefundFailsLater(t *testing.T) {
	s := newBooksShop(t)
	s.unclaimed(t, "pi_lost")
	testenv.Must(t, s.books.Decide(t.Context(), "pi_lost", false, "Ada", "not shipped"))
	held := s.mem.ledger
	s.mem.ledger = held[:1]
	s.read(t) // the books do not have the refund yet
	s.wantUnclaimed(t, "pi_lost", "refunded")
	s.mem.ledger = held
	s.read(t)
	s.wantUnclaimed(t, "pi_lost", "refunded")
	s.mem.end("pi_lost", payment.Failed)
	if c := wantReport(t, s.read(t), 1000, 0, true); c.UnclaimedCents != 1000 {
		t.Errorf("%d cents are unclaimed after the refund has failed, want 1000", c.UnclaimedCents)
	}
	s.wantUnclaimed(t, "pi_lost", "open")
	testenv.Must(t, s.books.Decide(t.Context(), "pi_lost", false, "Ada", "another card"))
	wantReport(t, s.read(t), 0, 0, true)
	s.wantUnclaimed(t, "pi_lost", "refunded")
}

// TestUnclaimedRefundIsRefused has the provider refuse the refund of an unclaimed payment in several ways. The operator
// learns why, and can decide again.
func TestUnclaimedRefundIsRefused(t *testing.T) {
	s := newBooksShop(t)
	s.unclaimed(t, "pi_lost")
	decide := func(state, detail string, refusal error) {
		t.Helper()
		s.mem.fail("refund", refusal)
		err := s.books.Decide(t.Context(), "pi_lost", false, "Ada", "not shipped")
		if err == nil || !strings.Contains(err.Error(), detail) {
			t.Errorf("Decide returns %v, want %q", err, detail)
		}
		s.wantUnclaimed(t, "pi_lost", state)
	}
	decide("refunding", "accept the key", failed(payment.Denied, ""))
	decide("refunding", "may not refund", failed(payment.Blocked, ""))
	decide("open", "refuses to return", failed(payment.Refused, payment.ByDispute))
	decide("open", "balance", failed(payment.Busy, payment.LowBalance))
	s.mem.api = "errors"
	decide("refunding", "does not answer", nil)
	s.mem.api = ""
	decide("open", "has failed", nil) // the provider repeats its error
	testenv.Must(t, s.books.Decide(t.Context(), "pi_lost", false, "Ada", "not shipped"))
	if n := len(s.mem.refunds["pi_lost"]); n != 1 {
		t.Errorf("the provider has %d refunds, want 1", n)
	}
}

// TestDecisionsOverHTTP checks the operators' API of the books.
func TestDecisionsOverHTTP(t *testing.T) {
	s := newBooksShop(t)
	s.unclaimed(t, "pi_kept")
	s.exec(t, `INSERT INTO payment_incidents (id, kind, detail) VALUES (gen_random_uuid(), 'lost_sessions', 'a test')`)
	r := parttest.NewRouter(slog.New(slog.DiscardHandler))
	s.books.OpsRoutes(r.Group("/ops/api"))
	do := func(method, path, body string) *httptest.ResponseRecorder {
		req := httptest.NewRequestWithContext(t.Context(), method, "/ops/api"+path, strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		recorder := httptest.NewRecorder()
		r.ServeHTTP(recorder, req)
		return recorder
	}
	const by = `{"actor":"Ada","note":"shipped"}`
	want := func(path, body string, status int, text string) {
		t.Helper()
		if a := do(http.MethodPost, path, body); a.Code != status || !strings.Contains(a.Body.String(), text) {
			t.Errorf("POST %s is answered with %d %s, want %d and %s", path, a.Code, a.Body, status, text)
		}
	}
	want("/books/unclaimed/pi_kept/keep", `{"actor":" ","other":1}`, http.StatusUnprocessableEntity, "/note")
	want("/books/unclaimed/pi_unknown/keep", by, http.StatusNotFound, "not-found")
	want("/books/unclaimed/pi%00/keep", by, http.StatusBadRequest, "intent")
	want("/books/unclaimed/pi_kept/refund", by, http.StatusConflict, "incident-open")
	var list struct{ Incidents []struct{ ID, Kind string } }
	testenv.Must(t, json.Unmarshal(do(http.MethodGet, "/books", "").Body.Bytes(), &list))
	open := list.Incidents[slices.IndexFunc(list.Incidents, func(i struct{ ID, Kind string }) bool { return i.Kind == "lost_sessions" })]
	want("/books/incidents/"+uuid.NewString()+"/close", by, http.StatusNotFound, "not-found")
	want("/books/incidents/"+open.ID+"/close", `{"actor":"Ada"}`, http.StatusUnprocessableEntity, "/note")
	want("/books/incidents/"+open.ID+"/close", by, http.StatusNoContent, "")
	want("/books/incidents/"+open.ID+"/close", `{"actor":"Eve","note":"again"}`, http.StatusNoContent, "")
	if closed := testenv.Query[string](t, s.db, `SELECT actor || ' ' || note FROM payment_incidents WHERE id = '`+open.ID+`' AND closed_at IS NOT NULL`); closed != "Ada shipped" {
		t.Errorf("the incident is closed by %q, want the first decision", closed)
	}
	want("/books/unclaimed/pi_kept/keep", by, http.StatusNoContent, "")
	want("/books/unclaimed/pi_kept/refund", by, http.StatusConflict, "not-unclaimed")
	s.wantUnclaimed(t, "pi_kept", "kept")
	if a := do(http.MethodGet, "/books", ""); a.Code != http.StatusOK || !strings.Contains(a.Body.String(), `"amount_cents":1000`) ||
		!strings.Contains(strings.ReplaceAll(a.Body.String(), " ", ""), `"balanced":true`) {
		t.Errorf("GET /books is answered with %d %s, want the report and the payment", a.Code, a.Body)
	}
	if s.mem.count("refund") != 0 {
		t.Error("money was returned that an operator keeps")
	}
}
