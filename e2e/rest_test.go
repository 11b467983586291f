package e2e

import (
	"net/http"
	"strings"
	"testing"
)

// TestMainJob tests the service's purpose over its REST API.
func TestMainJob(t *testing.T) { mainJob(t, anyShop(t)) }

// noViolations checks that the service finds no violation of its invariants. A service without the operators' API does
// not tell.
var noViolations = func(*testing.T, *process) {}

// mainJob signs up, places two orders, pays one of them, and leaves the other one to its timeout.
func mainJob(t *testing.T, p *process) {
	t.Helper()
	c := p.signUp()
	stock := c.available(beans)
	paid, left := c.place(), c.place()
	if got := c.available(beans); got != stock-2 {
		t.Errorf("%d available after two orders, want %d", got, stock-2)
	}
	c.post(http.StatusOK, "/api/orders/"+paid.ID+"/pay")
	c.post(http.StatusOK, "/api/orders/"+paid.ID+"/pay") // paying is idempotent

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
	noViolations(t, p)
}

// TestOneOrderForOneKey repeats a request with its idempotency key, as a client does if it got no response.
func TestOneOrderForOneKey(t *testing.T) {
	p := anyShop(t)
	c := p.signUp()
	stock := c.available(beans)
	place := domain.create(oneOfBeans, "cart 1")
	first := decode[order](t, c.expect(http.StatusCreated, place))
	for range 3 {
		if again := decode[order](t, c.expect(http.StatusOK, place)); again.ID != first.ID {
			t.Errorf("one key got order %s, then %s", first.ID, again.ID)
		}
	}
	if got := c.available(beans); got != stock-1 {
		t.Errorf("%d available after one order, want %d", got, stock-1)
	}
	place.body = `{"items":[{"product_id":"` + beans + `","quantity":2}]}`
	c.rejected(http.StatusUnprocessableEntity, "idempotency-key-reused", place)
	other := p.signUp()
	place.body = oneOfBeans
	others := decode[order](t, other.expect(http.StatusCreated, place)) // each customer has keys of its own
	c.post(http.StatusOK, "/api/orders/"+first.ID+"/cancel")
	c.post(http.StatusOK, "/api/orders/"+first.ID+"/cancel")
	other.post(http.StatusOK, "/api/orders/"+others.ID+"/cancel")
	if got := c.available(beans); got != stock {
		t.Errorf("%d available after both orders were cancelled, want %d", got, stock)
	}
}

// TestRejections sends requests that the service must reject, and checks the status and the problem.
func TestRejections(t *testing.T) {
	p := anyShop(t)
	c, other, anonymous := p.signUp(), p.signUp(), &client{t: t, base: p.url}
	o := c.place()
	c.post(http.StatusOK, "/api/orders/"+o.ID+"/pay")
	place := func(body string) request { return domain.create(body, "") }
	line := func(product, quantity string) string {
		return `{"items":[{"product_id":"` + product + `","quantity":` + quantity + `}]}`
	}
	for name, test := range map[string]struct {
		client  *client
		request request
		status  int
		problem string
	}{
		"out of stock":           {c, place(line(course, "1000")), http.StatusConflict, "out-of-stock"},
		"unknown product":        {c, place(line(o.ID, "1")), http.StatusUnprocessableEntity, "unknown-product"},
		"quantity 0":             {c, place(line(beans, "0")), http.StatusUnprocessableEntity, "invalid-request"},
		"unknown field":          {c, place(`{"colour":"red"}`), http.StatusUnprocessableEntity, "invalid-request"},
		"malformed JSON":         {c, place(`{"items":`), http.StatusBadRequest, "malformed-request"},
		"no token":               {anonymous, place(oneOfBeans), http.StatusUnauthorized, "unauthorized"},
		"another's order":        {other, domain.get(o.ID), http.StatusNotFound, "not-found"},
		"paying another's order": {other, domain.confirm(o.ID), http.StatusNotFound, "not-found"},
		"cancelling a paid one":  {c, domain.cancel(o.ID), http.StatusConflict, "order-paid"},
	} {
		t.Run(name, func(t *testing.T) {
			by := *test.client
			by.t = t
			by.rejected(test.status, test.problem, test.request)
		})
	}
}

// TestHeaders checks the headers that protect the browsers of customers.
func TestHeaders(t *testing.T) {
	p := anyShop(t)
	c := p.signUp()
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
