package shop_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/app"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// TestWithoutRedis runs a service on PostgreSQL alone: a sweep cancels what is due, and neither the doctor nor the
// health check misses Redis.
func TestWithoutRedis(t *testing.T) {
	contract, err := parttest.LoadContract(repositoryRoot)
	testenv.Must(t, err)
	database := testenv.Postgres(t)
	a := openApp(t, database, app.NoRedis, 1)
	pendingOrders(t, a, 3, -time.Second)
	if report := sweep(t, a); report.Overdue != 3 || report.Outcome != "ok" {
		t.Errorf("the sweep reported %+v, want 3 overdue", report)
	}

	handler, err := a.Handler()
	testenv.Must(t, err)
	request, answer := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz",
		http.NoBody), httptest.NewRecorder()
	handler.ServeHTTP(answer, request)
	if err := contract.Check(request, answer.Code, answer.Header(), answer.Body.Bytes()); err != nil {
		t.Error(err)
	}
	var ready struct{ Status, Redis string }
	testenv.Must(t, json.Unmarshal(answer.Body.Bytes(), &ready))
	if ready.Status != "ready" || ready.Redis != "none" {
		t.Errorf("/readyz answers %+v, want ready without Redis", ready)
	}

	var out strings.Builder
	code := runCommand(t.Context(), []string{"doctor", "--database-url", database, "--redis-url=none"}, &out)
	if code != 0 || !strings.Contains(out.String(), "ok    redis        none: the reconciler alone") {
		t.Errorf("the doctor exits with %d and prints:\n%s", code, &out)
	}
}
