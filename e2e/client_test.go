package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"example.com/shop/internal/testenv"
)

// contract is openapi.yaml, with the paths that it has.
var contract = sync.OnceValues(func() (routers.Router, error) {
	text, err := os.ReadFile("../cmd/shop/openapi.yaml")
	if err != nil {
		return nil, err
	}
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		return nil, err
	}
	return gorillamux.NewRouter(doc)
})

// client is one customer, or with the operators' token an operator.
type client struct {
	t     testing.TB
	base  string
	token string
}

// answer is a response whose body was read. If none came, there are only the times.
type answer struct {
	status int
	header http.Header
	body   []byte
	came   time.Time     // when it was read, or found not to come
	took   time.Duration // from the request until then
}

// into decodes the body.
func into[T any](t testing.TB, a answer) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(a.body, &v); err != nil {
		t.Fatalf("%s: %v", a.body, err)
	}
	return v
}

// request is what to send; header lines are "Name: value".
type request struct {
	method, path, body string
	headers            []string
}

// send sends a request and checks the answer against the contract.
func (c *client) send(r request) answer {
	c.t.Helper()
	a, err := c.try(r)
	must(c.t, err)
	return a
}

// patience is how long a customer waits for an answer: longer than the service takes to give up.
const patience = 20 * time.Second

// try is send for when there may be no answer.
func (c *client) try(r request) (answer, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, c.base+r.path, strings.NewReader(r.body))
	if err != nil {
		return answer{came: time.Now()}, err
	}
	if r.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	for _, line := range r.headers {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Set(name, value)
	}
	began := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return answer{came: time.Now(), took: time.Since(began)}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	came := time.Now()
	if err != nil {
		return answer{came: came, took: came.Sub(began)}, err
	}
	a := answer{resp.StatusCode, resp.Header, body, came, came.Sub(began)}
	if part := testenv.Inside(body); a.status >= 400 && part != "" {
		return a, fmt.Errorf("%s %s: the problem tells %q: %s", r.method, r.path, part, body)
	}
	return a, c.inContract(req, a)
}

func (c *client) inContract(req *http.Request, a answer) error {
	router, err := contract()
	if err != nil {
		return err
	}
	asked, err := http.NewRequestWithContext(req.Context(), req.Method, req.URL.RequestURI(), http.NoBody)
	if err != nil {
		return err
	}
	route, params, err := router.FindRoute(asked)
	if err != nil {
		return nil //nolint:nilerr // the contract does not know the path: the test tries one that is not there
	}
	return openapi3filter.ValidateResponse(req.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: asked, PathParams: params, Route: route},
		Status:                 a.status, Header: a.header, Body: io.NopCloser(bytes.NewReader(a.body)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	})
}

// expect sends a request that must be answered with a status.
func (c *client) expect(status int, r request) answer {
	c.t.Helper()
	a := c.send(r)
	if a.status != status {
		c.t.Fatalf("%s %s: %d, want %d: %s", r.method, r.path, a.status, status, a.body)
	}
	return a
}

func (c *client) get(path string) answer {
	c.t.Helper()
	return c.expect(http.StatusOK, request{method: "GET", path: path})
}

func (c *client) post(status int, path string) answer {
	c.t.Helper()
	return c.expect(status, request{method: "POST", path: path})
}

// signUp returns a new customer of a process.
func (p *process) signUp() *client {
	p.t.Helper()
	c := &client{t: p.t, base: p.url}
	c.token = into[struct{ Token string }](p.t, c.post(http.StatusCreated, "/api/customers")).Token
	return c
}

// operator returns an operator of a process.
func (p *process) operator() *client { return &client{t: p.t, base: p.url, token: p.ops} }

// beans is a seeded product.
const beans = "01900000-0000-7000-8000-000000000001"

type order struct {
	ID           string
	Status       string
	CancelReason string    `json:"cancel_reason"`
	ExpiresAt    time.Time `json:"expires_at"`
	CancelledAt  time.Time `json:"cancelled_at"`
	ServerTime   time.Time `json:"server_time"`
}

const oneOfBeans = `{"items":[{"product_id":"` + beans + `","quantity":1}]}`

func (c *client) place() order {
	c.t.Helper()
	return into[order](c.t, c.expect(http.StatusCreated, request{method: "POST", path: "/api/orders", body: oneOfBeans}))
}

func (c *client) order(id string) order {
	c.t.Helper()
	return into[order](c.t, c.get("/api/orders/"+id))
}

func (c *client) available(product string) int {
	c.t.Helper()
	list := into[struct {
		Items []struct {
			ID        string
			Available int
		}
	}](c.t, c.get("/api/products"))
	for _, item := range list.Items {
		if item.ID == product {
			return item.Available
		}
	}
	c.t.Fatalf("no product %s", product)
	return 0
}

// cancelledOnTime waits for an order's timeout and returns how late it was.
func (c *client) cancelledOnTime(id string) time.Duration {
	c.t.Helper()
	var o order
	eventually(c.t, "order "+id+" cancelled", func() bool {
		o = c.order(id)
		return o.Status == "cancelled"
	})
	if o.CancelReason != "timeout" || o.CancelledAt.Before(o.ExpiresAt) {
		c.t.Fatalf("order %+v was not cancelled by its timeout", o)
	}
	return o.CancelledAt.Sub(o.ExpiresAt)
}
