package shop_test

import (
	"net/http"
	"testing"

	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// TestUnreadyWithoutTables drops the schema, as during the restore of a backup. The service must be unready and answer
// 503 until all tables are back.
func TestUnreadyWithoutTables(t *testing.T) {
	a := newTestApp(t, testenv.Redis(t), 1)
	handler := a.Handler()
	status := func(path string) int { return parttest.Send(t, handler, "GET", path, "").Code }
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
