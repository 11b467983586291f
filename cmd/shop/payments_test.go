package main

import (
	"log/slog"
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
