package e2e

import (
	"net/http"
	"strings"
	"testing"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/faulttest"
)

// TestMainJob tests the service's purpose over its REST API.
func TestMainJob(t *testing.T) { mainJob(t, anyShop(t)) }

// noViolations checks that the service finds no violation of its invariants. A service without the operators' API does
// not tell.
var noViolations = func(*testing.T, *faulttest.Process) {}

// mainJob signs up, places two orders, pays one of them, and leaves the other one to its timeout.
func mainJob(t *testing.T, p *faulttest.Process) {
	t.Helper()
	c := p.SignUp()
	stock := shoptest.Available(c, shoptest.Beans)
	paid, left := place(c), place(c)
	if got := shoptest.Available(c, shoptest.Beans); got != stock-2 {
		t.Errorf("%d available after two orders, want %d", got, stock-2)
	}
	c.Post(http.StatusOK, "/api/orders/"+paid.ID+"/pay")
	c.Post(http.StatusOK, "/api/orders/"+paid.ID+"/pay") // paying is idempotent

	t.Logf("the unpaid order was cancelled %v after its deadline", c.WaitForTimeout(left.ID))
	if got := shoptest.Available(c, shoptest.Beans); got != stock-1 {
		t.Errorf("%d available after the timeout, want %d", got, stock-1)
	}
	if o := orderOf(c, paid.ID); o.Status != "paid" {
		t.Errorf("the paid order is %+v, want status paid", o)
	}
	late := faulttest.Decode[struct{ Type, Detail string }](t, c.Post(http.StatusConflict, "/api/orders/"+left.ID+"/pay"))
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
	noViolations(t, p)
}

// TestOneOrderForOneKey repeats a request with its idempotency key, as a client does if it got no response.
func TestOneOrderForOneKey(t *testing.T) {
	p := anyShop(t)
	c := p.SignUp()
	stock := shoptest.Available(c, shoptest.Beans)
	place := orders.Create(shoptest.OneOfBeans, "cart 1")
	first := faulttest.Decode[shoptest.Order](t, c.Expect(http.StatusCreated, place))
	for range 3 {
		if again := faulttest.Decode[shoptest.Order](t, c.Expect(http.StatusOK, place)); again.ID != first.ID {
			t.Errorf("one key got order %s, then %s", first.ID, again.ID)
		}
	}
	if got := shoptest.Available(c, shoptest.Beans); got != stock-1 {
		t.Errorf("%d available after one order, want %d", got, stock-1)
	}
	place.Body = `{"items":[{"product_id":"` + shoptest.Beans + `","quantity":2}]}`
	expectRejected(c, http.StatusUnprocessableEntity, "idempotency-key-reused", place)
	other := p.SignUp()
	place.Body = shoptest.OneOfBeans
	others := faulttest.Decode[shoptest.Order](t, other.Expect(http.StatusCreated, place)) // each customer has keys of its own
	c.Post(http.StatusOK, "/api/orders/"+first.ID+"/cancel")
	c.Post(http.StatusOK, "/api/orders/"+first.ID+"/cancel")
	other.Post(http.StatusOK, "/api/orders/"+others.ID+"/cancel")
	if got := shoptest.Available(c, shoptest.Beans); got != stock {
		t.Errorf("%d available after both orders were cancelled, want %d", got, stock)
	}
}

// TestRejections sends requests that the service must reject, and checks the status and the problem.
func TestRejections(t *testing.T) {
	p := anyShop(t)
	c, other, anonymous := p.SignUp(), p.SignUp(), &faulttest.Client{T: t, Base: p.URL}
	o := place(c)
	c.Post(http.StatusOK, "/api/orders/"+o.ID+"/pay")
	place := func(body string) faulttest.Request { return orders.Create(body, "") }
	line := func(product, quantity string) string {
		return `{"items":[{"product_id":"` + product + `","quantity":` + quantity + `}]}`
	}
	for name, test := range map[string]struct {
		client  *faulttest.Client
		request faulttest.Request
		status  int
		problem string
	}{
		"out of stock":           {c, place(line(shoptest.Course, "1000")), http.StatusConflict, "out-of-stock"},
		"unknown product":        {c, place(line(o.ID, "1")), http.StatusUnprocessableEntity, "unknown-product"},
		"quantity 0":             {c, place(line(shoptest.Beans, "0")), http.StatusUnprocessableEntity, "invalid-request"},
		"unknown field":          {c, place(`{"colour":"red"}`), http.StatusUnprocessableEntity, "invalid-request"},
		"malformed JSON":         {c, place(`{"items":`), http.StatusBadRequest, "malformed-request"},
		"no token":               {anonymous, place(shoptest.OneOfBeans), http.StatusUnauthorized, "unauthorized"},
		"another's order":        {other, orders.Get(o.ID), http.StatusNotFound, "not-found"},
		"paying another's order": {other, orders.Confirm(o.ID), http.StatusNotFound, "not-found"},
		"cancelling a paid one":  {c, orders.Cancel(o.ID), http.StatusConflict, "order-paid"},
	} {
		t.Run(name, func(t *testing.T) {
			by := *test.client
			by.T = t
			expectRejected(&by, test.status, test.problem, test.request)
		})
	}
}

// TestHeaders checks the headers that protect the browsers of customers.
func TestHeaders(t *testing.T) {
	p := anyShop(t)
	c := p.SignUp()
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
