package main

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/shop/internal/testenv"
)

// newTestPayments opens the demo's payment provider for a test, on the test's database, and sets its options. It does
// not serve.
func newTestPayments(t testing.TB, o *serveCommand) *demoPayments {
	t.Helper()
	var p demoPayments
	testenv.Must(t, p.open(t.Context(), o, testenv.Postgres(t), "http://127.0.0.1:1", slog.New(slog.DiscardHandler)))
	t.Cleanup(p.close)
	return &p
}

// TestPaymentsAreInContract checks that a process describes the paths of payments only if it serves them: only with a
// provider.
func TestPaymentsAreInContract(t *testing.T) {
	o := validOptions()
	o.DatabaseURL, o.RedisURL = testenv.Postgres(t), "redis://127.0.0.1:1/0"
	describes := func() bool {
		handler, err := openAppWith(t, &o).Handler()
		testenv.Must(t, err)
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/openapi.yaml", http.NoBody))
		return strings.Contains(recorder.Body.String(), "\n  /api/payments:\n")
	}
	if describes() {
		t.Error("without a provider, the contract describes /api/payments")
	}
	newTestPayments(t, &o)
	if !describes() {
		t.Error("with a provider, the contract does not describe /api/payments")
	}
}
