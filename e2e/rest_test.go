package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/faulttest"
)

// TestMainJob tests the service's purpose over its REST API. The customer places three orders, repeats one of the
// requests, pays one order, cancels one, and leaves one to its timeout.
func TestMainJob(t *testing.T) {
	p := orders.AnySite(t)
	c := p.SignUp()
	stock := shoptest.Available(c, shoptest.Beans)
	first := orders.Create(shoptest.OneOfBeans, "cart 1")
	paid, left, withdrawn := faulttest.Decode[shoptest.Order](t,
		c.Expect(http.StatusCreated, first)), place(c), place(c)
	if again := faulttest.Decode[shoptest.Order](t, c.Expect(http.StatusOK, first)); again.ID != paid.ID {
		t.Errorf("one key got order %s, then %s", paid.ID, again.ID)
	}
	if got := shoptest.Available(c, shoptest.Beans); got != stock-3 {
		t.Errorf("%d available after three orders, want %d", got, stock-3)
	}
	c.Post(http.StatusOK, "/api/orders/"+paid.ID+"/pay")
	c.Post(http.StatusOK, "/api/orders/"+paid.ID+"/pay") // paying is idempotent
	c.Post(http.StatusOK, "/api/orders/"+withdrawn.ID+"/cancel")
	c.Post(http.StatusOK, "/api/orders/"+withdrawn.ID+"/cancel")

	t.Logf("the unpaid order was cancelled %v after its deadline", c.WaitForTimeout(left.ID))
	if got := shoptest.Available(c, shoptest.Beans); got != stock-1 {
		t.Errorf("%d available after the timeout, want %d", got, stock-1)
	}
	if o := orderOf(c, paid.ID); o.Status != "paid" {
		t.Errorf("the paid order is %+v, want status paid", o)
	}
	late := faulttest.Decode[struct{ Type, Detail string }](t,
		c.Post(http.StatusConflict, "/api/orders/"+left.ID+"/pay"))
	if late.Type != "/problems/deadline-passed" || late.Detail == "" {
		t.Errorf("paying too late: problem %+v, want /problems/deadline-passed with a detail", late)
	}
	events := faulttest.Decode[struct {
		Items []struct{ Type, Actor string }
	}](t, c.Get("/api/orders/"+left.ID+"/events")).Items
	var trail []string
	for _, e := range events {
		trail = append(trail, e.Type)
	}
	// Reminders are best effort.
	if got := strings.Join(trail, " "); got != "placed reminded cancelled" && got != "placed cancelled" {
		t.Errorf("the audit trail is %q, want placed, at most one reminded, and cancelled", got)
	}
	expectRejected(c, http.StatusConflict, "order-paid", orders.Cancel(paid.ID, ""))
	expectRejected(p.SignUp(), http.StatusNotFound, "not-found", orders.Get(paid.ID))
	noViolations(t, p)
	checkHeaders(t, c)
	p.Operator().Post(http.StatusNotFound, "/ops/api/faults/redis-wipe") // only the demo has faults
	c.Expect(http.StatusUnauthorized, faulttest.Request{Method: "GET", Path: "/ops/api/stats"})
}

// noViolations checks that the service finds no violation of its invariants.
func noViolations(t *testing.T, p *faulttest.Process) {
	t.Helper()
	type invariants struct {
		Violations []any
		CheckedAt  *time.Time `json:"invariants_checked_at"`
	}
	asked := time.Now()
	faulttest.Eventually(t, "the invariants are checked", func() bool {
		stats := faulttest.Decode[invariants](t, p.Operator().Get("/ops/api/stats"))
		if stats.CheckedAt == nil || stats.CheckedAt.Before(asked) {
			return false
		}
		if stats.Violations == nil || len(stats.Violations) > 0 {
			t.Errorf("violations of invariants: %v, want an empty list", stats.Violations)
		}
		return true
	})
}

// checkHeaders checks the headers that protect the browsers of customers.
func checkHeaders(t *testing.T, c *faulttest.Client) {
	t.Helper()
	c.Get("/healthz")
	a := c.Expect(http.StatusNotFound, faulttest.Request{Method: "GET", Path: "/nothing/here"})
	for header, want := range map[string]string{
		"Content-Type": "application/problem+json", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
	} {
		if got := a.Header.Get(header); got != want {
			t.Errorf("%s: %q, want %q", header, got, want)
		}
	}
	// A page of another site can make the browser send a request with the customer's cookie.
	forged := orders.Create(orders.Bodies[0], "")
	forged.Headers = []string{"Sec-Fetch-Site: cross-site"}
	c.Expect(http.StatusForbidden, forged)
}

// expectRejected sends a request that the service must reject with a status and a problem.
func expectRejected(c *faulttest.Client, status int, problem string, r faulttest.Request) {
	c.T.Helper()
	if got := faulttest.Decode[struct{ Type string }](c.T, c.Expect(status, r)).Type; got != "/problems/"+problem {
		c.T.Errorf("%s %s: problem %s, want /problems/%s", r.Method, r.Path, got, problem)
	}
}

// place places an order.
func place(c *faulttest.Client) shoptest.Order {
	c.T.Helper()
	return faulttest.Decode[shoptest.Order](c.T, c.Expect(http.StatusCreated, orders.Create(shoptest.OneOfBeans, "")))
}

// orderOf returns an order.
func orderOf(c *faulttest.Client, id string) shoptest.Order {
	c.T.Helper()
	return faulttest.Decode[shoptest.Order](c.T, c.Expect(http.StatusOK, orders.Get(id)))
}
