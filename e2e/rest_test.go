package e2e

import (
	"bufio"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestMainJob is what the service is for.
func TestMainJob(t *testing.T) { mainJob(t, anywhere(t)) }

// mainJob signs up, orders, pays one order and leaves another.
func mainJob(t *testing.T, p *process) {
	t.Helper()
	c := p.signUp()
	stock := c.available(beans)
	paid, left := c.place(), c.place()
	if got := c.available(beans); got != stock-2 {
		t.Errorf("%d available after two orders of one, want %d", got, stock-2)
	}
	c.post(http.StatusOK, "/api/orders/"+paid.ID+"/pay")
	c.post(http.StatusOK, "/api/orders/"+paid.ID+"/pay") // again: the same answer

	late := c.cancelledOnTime(left.ID)
	t.Logf("cancelled %v after the deadline", late)
	if got := c.available(beans); got != stock-1 {
		t.Errorf("%d available after the timeout, want %d", got, stock-1)
	}
	if o := c.order(paid.ID); o.Status != "paid" {
		t.Errorf("the paid order is %+v", o)
	}
	refused := into[struct{ Type, Detail string }](t, c.post(http.StatusConflict, "/api/orders/"+left.ID+"/pay"))
	if refused.Type != "/problems/deadline-passed" || refused.Detail == "" {
		t.Errorf("paying too late is refused with %+v", refused)
	}
	events := into[struct {
		Items []struct{ Type, Actor string }
	}](t, c.get("/api/orders/"+left.ID+"/events")).Items
	if len(events) != 2 || events[0].Type != "placed" || events[1].Type != "cancelled" {
		t.Errorf("audit trail %+v", events)
	}
	stats := into[struct{ Violations []any }](t, p.operator().get("/ops/api/stats"))
	if stats.Violations == nil || len(stats.Violations) > 0 {
		t.Errorf("violations: %v", stats.Violations)
	}
}

// TestOneOrderForOneKey repeats a request, as a client does that got no answer.
func TestOneOrderForOneKey(t *testing.T) {
	p := anywhere(t)
	c := p.signUp()
	stock := c.available(beans)
	ask := request{method: "POST", path: "/api/orders", body: oneOfBeans, headers: []string{"Idempotency-Key: cart 1"}}
	first := into[order](t, c.expect(http.StatusCreated, ask))
	for range 3 {
		if again := into[order](t, c.expect(http.StatusOK, ask)); again.ID != first.ID {
			t.Errorf("order %s, then %s for one key", first.ID, again.ID)
		}
	}
	if got := c.available(beans); got != stock-1 {
		t.Errorf("%d available after one order, want %d", got, stock-1)
	}
	ask.body = `{"items":[{"product_id":"` + beans + `","quantity":2}]}`
	c.refused(http.StatusUnprocessableEntity, "idempotency-key-reused", ask)
	other := p.signUp()
	ask.body = oneOfBeans
	others := into[order](t, other.expect(http.StatusCreated, ask)) // the key is the customer's own
	c.post(http.StatusOK, "/api/orders/"+first.ID+"/cancel")
	c.post(http.StatusOK, "/api/orders/"+first.ID+"/cancel")
	other.post(http.StatusOK, "/api/orders/"+others.ID+"/cancel")
	if got := c.available(beans); got != stock {
		t.Errorf("%d available after both were cancelled, want %d", got, stock)
	}
}

// TestEvents listens while one order is paid and another one times out: whatever is between the customer and
// the service passes each event on as it comes.
func TestEvents(t *testing.T) {
	p := anywhere(t)
	c := p.signUp()
	heard := c.listen()
	heard.await(`{"live":true}`)
	paid := c.place()
	heard.await(`{"id":"` + paid.ID + `"}`)
	c.post(http.StatusOK, "/api/orders/"+paid.ID+"/pay")
	heard.await(`{"id":"` + paid.ID + `"}`)
	left := c.place()
	heard.await(`{"id":"` + left.ID + `"}`)
	heard.await(`{"id":"` + left.ID + `"}`)
	if o := c.order(left.ID); o.Status != "cancelled" {
		t.Errorf("heard of order %+v before it had changed", o)
	}
}

// events are those of an open stream.
type events struct {
	t    testing.TB
	data chan string
}

// listen opens a stream that stays open until the test ends.
func (c *client) listen() events {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, c.base+"/api/events", http.NoBody)
	must(c.t, err)
	req.Header.Set("Authorization", "Bearer "+c.token)
	resp, err := http.DefaultClient.Do(req)
	must(c.t, err)
	if resp.StatusCode != http.StatusOK {
		c.t.Fatalf("GET /api/events: %d", resp.StatusCode)
	}
	all := events{c.t, make(chan string)}
	ended := make(chan struct{})
	c.t.Cleanup(func() {
		resp.Body.Close()
		<-ended
	})
	go func() {
		defer close(ended)
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				select {
				case all.data <- data:
				case <-req.Context().Done():
					return
				}
			}
		}
	}()
	return all
}

// await waits for an event with the data; its deadline is for a machine under heavy load.
func (e events) await(data string) {
	e.t.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case got := <-e.data:
			if got == data {
				return
			}
		case <-deadline:
			e.t.Fatalf("no event of %s", data)
		}
	}
}

// TestRefusals asks for what must be refused, each in its own way.
func TestRefusals(t *testing.T) {
	p := anywhere(t)
	c, other, nobody := p.signUp(), p.signUp(), &client{t: t, base: p.url}
	o := c.place()
	c.post(http.StatusOK, "/api/orders/"+o.ID+"/pay")
	place := func(body string) request { return request{method: "POST", path: "/api/orders", body: body} }
	line := func(product, quantity string) string {
		return `{"items":[{"product_id":"` + product + `","quantity":` + quantity + `}]}`
	}
	for name, test := range map[string]struct {
		by     *client
		ask    request
		status int
		code   string
	}{
		"more than there is":     {c, place(line(course, "1000")), http.StatusConflict, "out-of-stock"},
		"what is not on sale":    {c, place(line(o.ID, "1")), http.StatusUnprocessableEntity, "unknown-product"},
		"nothing":                {c, place(line(beans, "0")), http.StatusUnprocessableEntity, "invalid-request"},
		"a field that is none":   {c, place(`{"colour":"red"}`), http.StatusUnprocessableEntity, "invalid-request"},
		"what is no JSON":        {c, place(`{"items":`), http.StatusBadRequest, "malformed-request"},
		"without a token":        {nobody, place(oneOfBeans), http.StatusUnauthorized, "unauthorized"},
		"another's order":        {other, request{method: "GET", path: "/api/orders/" + o.ID}, http.StatusNotFound, "not-found"},
		"paying another's order": {other, request{method: "POST", path: "/api/orders/" + o.ID + "/pay"}, http.StatusNotFound, "not-found"},
		"cancelling a paid one":  {c, request{method: "POST", path: "/api/orders/" + o.ID + "/cancel"}, http.StatusConflict, "order-paid"},
	} {
		t.Run(name, func(t *testing.T) {
			by := *test.by
			by.t = t
			by.refused(test.status, test.code, test.ask)
		})
	}
}

// refused sends a request that must be refused with a status and a problem.
func (c *client) refused(status int, code string, r request) {
	c.t.Helper()
	if got := into[struct{ Type string }](c.t, c.expect(status, r)).Type; got != "/problems/"+code {
		c.t.Errorf("refused with %s, want /problems/%s", got, code)
	}
}
