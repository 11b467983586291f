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
	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/payments/internal/books"
	"example.com/shop/payments/internal/payment"
	"example.com/shop/payments/internal/provider"
)

// unclaimed adds a payment to the books that names this deployment, and an attempt that the database does not have. An
// operator has closed the incident.
func (s *booksShop) unclaimed(t *testing.T, intent string) {
	t.Helper()
	owner := provider.Owner{Deployment: "north", Order: uuid.NewString(), Attempt: uuid.NewString()}
	s.mem.sessions["cs_"+intent] = &provider.Session{Owner: owner, Paid: true, Intent: intent, Currency: "eur"}
	s.book(provider.Captured, intent, "ch_"+intent, 1000).Owner = owner
	s.read(t)
	s.exec(t, `UPDATE payment_incidents SET closed_at = now(), actor = 'Ada', note = 'looked'`)
}

// wantUnclaimed checks what operators see of an unclaimed payment: its state, and what is not returned of it.
func (s *booksShop) wantUnclaimed(t *testing.T, intent, state string, cents int64) {
	t.Helper()
	for _, u := range s.listed(t).Unclaimed {
		if u.Intent == intent && u.State == state && u.AmountCents == cents {
			return
		}
	}
	t.Errorf("the unclaimed payments are %+v, want %s, %s, with %d cents", s.listed(t).Unclaimed, intent, state, cents)
}

// booksAnswer is the answer of GET /ops/api/books.
type booksAnswer struct {
	Report    books.Report
	Incidents []struct{ ID, Kind string }
	Unclaimed []struct {
		Intent, State string
		AmountCents   int64 `json:"amount_cents"`
	}
}

func (s *booksShop) listed(t *testing.T) (list booksAnswer) {
	t.Helper()
	answer := s.do(t, http.MethodGet, "/books", "")
	if answer.Code != http.StatusOK {
		t.Fatalf("GET /books is answered with %d %s, want 200", answer.Code, answer.Body)
	}
	testenv.Must(t, json.Unmarshal(answer.Body.Bytes(), &list))
	return list
}

// do sends a request to the operators' API of the books.
func (s *booksShop) do(t *testing.T, method, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	r := parttest.NewRouter(slog.New(slog.DiscardHandler))
	payment.AddRoutes(r, r.Group("/ops/api"), s.tokens, s.gorm, s.Service, s.refunder, s.books, s.webhooks,
		slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	req := httptest.NewRequestWithContext(t.Context(), method, "/ops/api"+path, strings.NewReader(body))
	req.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	r.ServeHTTP(recorder, req)
	return recorder
}

// TestUnclaimedIsReturned has an operator return the money of an unclaimed payment in the provider's dashboard, in
// two parts. The refunds fail later, and the money is unclaimed again.
func TestUnclaimedIsReturned(t *testing.T) {
	s := newBooksShop(t)
	s.unclaimed(t, "pi_lost")
	s.wantUnclaimed(t, "pi_lost", "open", 1000)
	for _, left := range []int64{600, 0} {
		s.mem.byHand(t, "pi_lost", 1000-left-s.mem.returned("pi_lost"))
		if c := wantReport(t, s.read(t), left, 0, true); c.UnclaimedCents != left {
			t.Errorf("%d cents are unclaimed, want %d", c.UnclaimedCents, left)
		}
	}
	s.wantUnclaimed(t, "pi_lost", "returned", 0)
	if err := s.books.Keep(t.Context(), "pi_lost", "Ada", "shipped"); parttest.ClassOf(err) != books.NotUnclaimed {
		t.Errorf("to keep what was returned returns %v, want not-unclaimed", err)
	}
	s.mem.end("pi_lost", provider.Failed)
	if c := wantReport(t, s.read(t), 1000, 0, true); c.UnclaimedCents != 1000 || c.KeptCents != 0 {
		t.Errorf("%d cents are unclaimed, %d of them kept; want 1000 and 0", c.UnclaimedCents, c.KeptCents)
	}
	s.wantUnclaimed(t, "pi_lost", "open", 1000)
	testenv.Must(t, s.books.Keep(t.Context(), "pi_lost", "Ada", "shipped"))
	if c := wantReport(t, s.read(t), 1000, 0, true); c.UnclaimedCents != 1000 || c.KeptCents != 1000 {
		t.Errorf("%d cents are unclaimed, %d of them kept; want 1000 and 1000", c.UnclaimedCents, c.KeptCents)
	}
	s.wantUnclaimed(t, "pi_lost", "kept", 1000)
	if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM payment_incidents`); n != 1 {
		t.Errorf("%d incidents were opened, want 1: each payment is found once", n)
	}
}

// TestDecisionsOverHTTP checks the operators' API of the books.
func TestDecisionsOverHTTP(t *testing.T) {
	s := newBooksShop(t)
	s.unclaimed(t, "pi_kept")
	s.exec(t, `INSERT INTO payment_incidents (id, kind, detail) VALUES (gen_random_uuid(), 'lost_sessions', 'a test')`)
	const by = `{"actor":"Ada","note":"shipped"}`
	want := func(path, body string, status int, text string) {
		t.Helper()
		if a := s.do(t, http.MethodPost, path, body); a.Code != status || !strings.Contains(a.Body.String(), text) {
			t.Errorf("POST %s is answered with %d %s, want %d and %s", path, a.Code, a.Body, status, text)
		}
	}
	want("/books/unclaimed/pi_kept/keep", `{"actor":" ","other":1}`, http.StatusUnprocessableEntity, "/note")
	want("/books/unclaimed/pi_unknown/keep", by, http.StatusNotFound, "not-found")
	want("/books/unclaimed/pi%00/keep", by, http.StatusBadRequest, "intent")
	list := s.listed(t)
	open := list.Incidents[slices.IndexFunc(list.Incidents, func(i struct{ ID, Kind string }) bool { return i.Kind == "lost_sessions" })]
	want("/books/incidents/"+uuid.NewString()+"/close", by, http.StatusNotFound, "not-found")
	want("/books/incidents/"+open.ID+"/close", `{"actor":"Ada"}`, http.StatusUnprocessableEntity, "/note")
	want("/books/incidents/"+open.ID+"/close", by, http.StatusNoContent, "")
	want("/books/incidents/"+open.ID+"/close", `{"actor":"Eve","note":"again"}`, http.StatusNoContent, "")
	if closed := testenv.Query[string](t, s.db, `SELECT actor || ' ' || note FROM payment_incidents WHERE id = '`+open.ID+`' AND closed_at IS NOT NULL`); closed != "Ada shipped" {
		t.Errorf("the incident is closed by %q, want the first decision", closed)
	}
	want("/books/unclaimed/pi_kept/keep", by, http.StatusNoContent, "")
	want("/books/unclaimed/pi_kept/keep", by, http.StatusConflict, "not-unclaimed")
	s.wantUnclaimed(t, "pi_kept", "kept", 1000)
	if r := s.listed(t).Report; !r.Balanced {
		t.Errorf("the report is %+v, want a balanced one", r)
	}
}
