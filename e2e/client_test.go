package e2e

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

// client is a customer, or an operator if it has the operators' token.
type client struct {
	service *service
	t       testing.TB
	base    string
	token   string
}

// answer is a response whose body was read. If no response came, only ended and took are set.
type answer struct {
	status int
	header http.Header
	body   []byte
	ended  time.Time     // when the body was read, or the client gave up
	took   time.Duration // from the request until ended
	// rejected is the reason why the service rejected the request. "": the service description has none for the answer.
	rejected rejection
}

// decode reads the body as JSON.
func decode[T any](t testing.TB, a answer) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(a.body, &v); err != nil {
		t.Fatalf("decode the body %q: %v", a.body, err)
	}
	return v
}

// rejectionOf returns the reason of an answer with a problem.
func (s *service) rejectionOf(status int, body []byte) rejection {
	var problem struct{ Type string }
	if status >= http.StatusBadRequest {
		_ = json.Unmarshal(body, &problem)
	}
	return s.rejections[problem.Type]
}

// request is a request to send.
type request struct {
	method, path, body string
	headers            []string // lines "Name: value"
}

// send sends a request and checks the response against the contract. It fails the test if no response comes.
func (c *client) send(r request) answer {
	c.t.Helper()
	a, err := c.try(r)
	testenv.Must(c.t, err)
	return a
}

// requestTimeout is how long a client waits for a response. The service gives up on a request sooner.
const requestTimeout = 20 * time.Second

// try is [client.send], but returns an error where send fails the test. With an error, the status of the answer is 0 if
// no response came. Otherwise the response came but breaks the contract.
func (c *client) try(r request) (answer, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, c.base+r.path, strings.NewReader(r.body))
	if err != nil {
		return answer{ended: time.Now()}, err
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
		return answer{ended: time.Now(), took: time.Since(began)}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	ended := time.Now()
	if err != nil {
		return answer{ended: ended, took: ended.Sub(began)}, err
	}
	a := answer{resp.StatusCode, resp.Header, body, ended, ended.Sub(began), c.service.rejectionOf(resp.StatusCode, body)}
	promised, err := c.service.contract()
	if err != nil {
		return a, err
	}
	return a, promised.Check(req, a.status, a.header, a.body)
}

// admitted sends a request. It repeats a request that the service rejects because it is overloaded, as clients should,
// because a loaded machine may be too slow for a few requests.
func (c *client) admitted(r request) (a answer) {
	c.t.Helper()
	eventually(c.t, r.method+" "+r.path+" is not rejected because of overload", func() bool {
		a = c.send(r)
		return a.rejected != rejectedOverloaded
	})
	return a
}

// expect sends a request until it is admitted, and fails the test if the response has another status.
func (c *client) expect(status int, r request) answer {
	c.t.Helper()
	a := c.admitted(r)
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

// signUp returns a new customer of a process. A service without customers lets all clients do everything.
func (p *process) signUp() *client {
	p.t.Helper()
	c := p.anonymous()
	if p.service.signUp != "" {
		c.token = decode[struct{ Token string }](p.t, c.post(http.StatusCreated, p.service.signUp)).Token
	}
	return c
}

// anonymous returns a client of a process without a token.
func (p *process) anonymous() *client { return &client{service: p.service, t: p.t, base: p.url} }

// operator returns an operator of a process.
func (p *process) operator() *client {
	c := p.anonymous()
	c.token = p.opsToken
	return c
}

// create creates an item.
func (c *client) create() item {
	c.t.Helper()
	return c.item(c.expect(http.StatusCreated, c.service.create(c.service.bodies[0], "")))
}

// confirm confirms an item.
func (c *client) confirm(id string) {
	c.t.Helper()
	c.item(c.expect(http.StatusOK, c.service.confirm(id)))
}

// look returns the item with an id.
func (c *client) look(id string) item {
	c.t.Helper()
	return c.item(c.expect(http.StatusOK, c.service.get(id)))
}

// item decodes an item.
func (c *client) item(a answer) item {
	c.t.Helper()
	i, err := c.service.decode(a.body)
	testenv.Must(c.t, err)
	return i
}

// waitForTimeout waits until an item is cancelled by its timeout, and returns the time from its deadline until then.
func (c *client) waitForTimeout(id string) time.Duration {
	c.t.Helper()
	var i item
	eventually(c.t, "item "+id+" cancelled", func() bool {
		i = c.look(id)
		return i.status == timedOut || i.status == cancelled
	})
	if i.status != timedOut || i.cancelledAt.Before(i.deadline) {
		c.t.Fatalf("item %+v was not cancelled by its timeout", i)
	}
	return i.cancelledAt.Sub(i.deadline)
}

// owned is an item and its customer.
type owned struct {
	item
	customer *client
}

// create creates an item for a new customer. Tests that create many items use it, because the service bounds what one
// customer can have at a time.
func (p *process) create() owned {
	p.t.Helper()
	c := p.signUp()
	return owned{c.create(), c}
}

// waitForTimeouts waits until all of the items are cancelled by their timeouts, as this process shows them. It returns
// the longest time from a deadline until then.
func (p *process) waitForTimeouts(items []owned) (latest time.Duration) {
	p.t.Helper()
	for _, i := range items {
		c := *i.customer
		c.base = p.url
		latest = max(latest, c.waitForTimeout(i.id))
	}
	p.t.Logf("the last of %d timeouts was %v late", len(items), latest)
	return latest
}
