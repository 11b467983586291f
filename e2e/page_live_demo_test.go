package e2e

import (
	"net/http"
	"strings"
	"testing"
)

// TestPageWithoutRedis stops Redis while the page is open, and starts it again. Meanwhile the page polls.
func TestPageWithoutRedis(t *testing.T) {
	pageTest(t)
	p := demo(t, nil, timeoutFlag, "6s")
	page := shopTab(t, p)
	p.operator().post(http.StatusNoContent, "/ops/api/faults/redis-stop")
	page.WaitFor(connection, "No live updates: refreshed every 3 s")
	page.Click(buyBeans)
	page.Until("the first order", func() bool { return page.Count(aOrder) == 1 })
	if left := page.Text(aOrder + " .countdown"); !strings.HasPrefix(left, "0:0") {
		t.Errorf("the countdown is %q right after the order, want 0:0…", left)
	}
	page.WaitFor(aOrder, "Cancelled: not paid in time") // by the reconciler, and without a notification
	p.operator().post(http.StatusNoContent, "/ops/api/faults/redis-start")
	page.WaitFor(connection, "Live")
}
