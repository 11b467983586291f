package e2e

import (
	"net/http"
	"strings"
	"testing"
)

// TestMainJob tests the service's purpose over its REST API. The customer places three orders, repeats one of the
// requests, pays one order, cancels one, and leaves one to its timeout.
func TestMainJob(t *testing.T) {
	p := anyShop(t)
	c := p.signUp()
	stock := c.available(beans)
	place := domain.create(oneOfBeans, "cart 1")
	paid, left, withdrawn := decode[order](t, c.expect(http.StatusCreated, place)), c.place(), c.place()
	if again := decode[order](t, c.expect(http.StatusOK, place)); again.ID != paid.ID {
		t.Errorf("one key got order %s, then %s", paid.ID, again.ID)
	}
	if got := c.available(beans); got != stock-3 {
		t.Errorf("%d available after three orders, want %d", got, stock-3)
	}
	c.post(http.StatusOK, "/api/orders/"+paid.ID+"/pay")
	c.post(http.StatusOK, "/api/orders/"+paid.ID+"/pay") // paying is idempotent
	c.post(http.StatusOK, "/api/orders/"+withdrawn.ID+"/cancel")
	c.post(http.StatusOK, "/api/orders/"+withdrawn.ID+"/cancel")

	t.Logf("the unpaid order was cancelled %v after its deadline", c.waitForTimeout(left.ID))
	if got := c.available(beans); got != stock-1 {
		t.Errorf("%d available after the timeout, want %d", got, stock-1)
	}
	if o := c.order(paid.ID); o.Status != "paid" {
		t.Errorf("the paid order is %+v, want status paid", o)
	}
	late := decode[struct{ Type, Detail string }](t, c.post(http.StatusConflict, "/api/orders/"+left.ID+"/pay"))
	if late.Type != "/problems/deadline-passed" || late.Detail == "" {
		t.Errorf("paying too late: problem %+v, want /problems/deadline-passed with a detail", late)
	}
	events := decode[struct {
		Items []struct{ Type, Actor string }
	}](t, c.get("/api/orders/"+left.ID+"/events")).Items
	var trail []string
	for _, e := range events {
		trail = append(trail, e.Type)
	}
	// Reminders are best effort.
	if got := strings.Join(trail, " "); got != "placed reminded cancelled" && got != "placed cancelled" {
		t.Errorf("the audit trail is %q, want placed, at most one reminded, and cancelled", got)
	}
	c.rejected(http.StatusConflict, "order-paid", domain.cancel(paid.ID))
	p.signUp().rejected(http.StatusNotFound, "not-found", domain.get(paid.ID))
	noViolations(t, p)
	checkHeaders(t, c)
	checkOperators(t, p)
}

// noViolations checks that the service finds no violation of its invariants.
func noViolations(t *testing.T, p *process) {
	t.Helper()
	stats := decode[struct{ Violations []any }](t, p.operator().get("/ops/api/stats"))
	if stats.Violations == nil || len(stats.Violations) > 0 {
		t.Errorf("violations of invariants: %v, want an empty list", stats.Violations)
	}
}

// checkHeaders checks the headers that protect the browsers of customers.
func checkHeaders(t *testing.T, c *client) {
	t.Helper()
	c.get("/healthz")
	a := c.expect(http.StatusNotFound, request{method: "GET", path: "/nothing/here"})
	for header, want := range map[string]string{
		"Content-Type": "application/problem+json", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
	} {
		if got := a.header.Get(header); got != want {
			t.Errorf("%s: %q, want %q", header, got, want)
		}
	}
	// A page of another site can make the browser send a request with the customer's cookie.
	forged := domain.create(domain.bodies[0], "")
	forged.headers = []string{"Sec-Fetch-Site: cross-site"}
	c.expect(http.StatusForbidden, forged)
}

// checkOperators checks that the demo's API of faults does not exist in production, and that the operators' API
// rejects clients without the operators' token.
func checkOperators(t *testing.T, p *process) {
	t.Helper()
	ops, c := p.operator(), p.signUp()
	ops.post(http.StatusNotFound, "/ops/api/faults/redis-wipe")
	ops.expect(http.StatusNotFound, request{method: "GET", path: "/ops/api/faults"})
	for _, r := range []request{
		{method: "GET", path: "/ops/api/stats"}, {method: "POST", path: "/ops/api/reconcile"},
		{method: "GET", path: "/ops/api/dead-letters"}, {method: "POST", path: "/ops/api/dead-letters/" + kind + "/x/redrive"},
	} {
		c.expect(http.StatusUnauthorized, r)
	}
	eventually(t, "a sweep starts, because no other sweep runs", func() bool {
		return ops.send(request{method: "POST", path: "/ops/api/reconcile"}).status == http.StatusOK
	})
	ops.get("/ops/api/dead-letters")
	ops.post(http.StatusNotFound, "/ops/api/dead-letters/"+kind+"/x/redrive")
	ops.expect(http.StatusBadRequest, request{method: "GET", path: "/ops/api/dead-letters?limit=0&cursor=x"})
}

// rejected sends a request that the service must reject with a status and a problem.
func (c *client) rejected(status int, problem string, r request) {
	c.t.Helper()
	if got := decode[struct{ Type string }](c.t, c.expect(status, r)).Type; got != "/problems/"+problem {
		c.t.Errorf("%s %s: problem %s, want /problems/%s", r.method, r.path, got, problem)
	}
}

// place places an order.
func (c *client) place() order {
	c.t.Helper()
	return decode[order](c.t, c.expect(http.StatusCreated, domain.create(oneOfBeans, "")))
}

// order returns an order.
func (c *client) order(id string) order {
	c.t.Helper()
	return decode[order](c.t, c.expect(http.StatusOK, domain.get(id)))
}
