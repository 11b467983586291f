package shop_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/golang-jwt/jwt/v5"

	"example.com/shop/internal/testenv"
)

// TestUnreadyWithoutTables drops the schema, as during the restore of a backup. The service must be unready and answer
// 503 until all tables are back.
func TestUnreadyWithoutTables(t *testing.T) {
	a := newTestApp(t, testenv.Redis(t), 1)
	handler := a.Handler()
	status := func(path string) int {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
		return recorder.Code
	}
	tables := []string{"products", "orders", "order_items", "order_events", "order_trail", "outbox",
		"reconcile_reports"}
	expectBoth := func(want int) {
		t.Helper()
		for _, path := range []string{"/readyz", "/api/products"} {
			if got := status(path); got != want {
				t.Errorf("GET %s: got status %d, want %d", path, got, want)
			}
		}
	}
	expectBoth(http.StatusOK)
	testenv.Exec(t, a.Pool, `CREATE SCHEMA backup`)
	for _, table := range tables {
		testenv.Exec(t, a.Pool, `ALTER TABLE `+table+` SET SCHEMA backup`)
	}
	expectBoth(http.StatusServiceUnavailable)
	testenv.Exec(t, a.Pool, `DROP SCHEMA public CASCADE`)
	expectBoth(http.StatusServiceUnavailable)
	// A restore creates the tables, then loads them, then adds indexes and constraints.
	testenv.Exec(t, a.Pool, `CREATE SCHEMA public`)
	testenv.Exec(t, a.Pool, `CREATE TABLE public.orders (LIKE backup.orders)`)
	if got := status("/readyz"); got != http.StatusServiceUnavailable {
		t.Errorf("GET /readyz with only the table orders, without its constraints: got status %d, want 503", got)
	}
	testenv.Exec(t, a.Pool, `DROP TABLE public.orders`)
	for _, table := range tables {
		testenv.Exec(t, a.Pool, `ALTER TABLE backup.`+table+` SET SCHEMA public`)
	}
	expectBoth(http.StatusOK)
}

// TestTokens checks the names in customers' tokens and of their cookie. If one changes, every customer loses access to
// their orders.
func TestTokens(t *testing.T) {
	o := validOptions()
	handler := newTestApp(t, "redis://127.0.0.1:1/0", 1).Handler()
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), "POST", "/api/customers", http.NoBody))
	cookie, err := http.ParseSetCookie(recorder.Header().Get("Set-Cookie"))
	testenv.Must(t, err)
	var claims jwt.RegisteredClaims
	_, err = jwt.ParseWithClaims(cookie.Value, &claims,
		func(*jwt.Token) (any, error) { return []byte(o.TokenKey), nil })
	testenv.Must(t, err)
	if cookie.Name != "shop_token_de6ba5ee" || cookie.Path != "/api" || claims.Issuer != "shop" ||
		!slices.Equal(claims.Audience, []string{"shop-customers"}) {
		t.Errorf("got the cookie %s for %s with a token of %s for %v, want shop_token_de6ba5ee for /api, of shop for "+
			"shop-customers",
			cookie.Name, cookie.Path, claims.Issuer, claims.Audience)
	}
}
