package faulttest

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

// Client is a customer, or an operator if it has the operators' token.
type Client struct {
	service *Service
	T       testing.TB
	Base    string
	Token   string
	secret  func(id string) string // returns what confirms a row
}

// Answer is a response whose body was read. If no response came, only ended and took are set.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	Ended  time.Time     // when the body was read, or the client gave up
	Took   time.Duration // from the request until ended
	// Rejected is the reason why the service rejected the request. "": the service description has none for the answer.
	Rejected Rejection
}

// Decode reads the body as JSON.
func Decode[T any](t testing.TB, a Answer) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(a.Body, &v); err != nil {
		t.Fatalf("decode the body %q: %v", a.Body, err)
	}
	return v
}

// rejectionOf returns the reason of an answer with a problem.
func (s *Service) rejectionOf(status int, body []byte) Rejection {
	var problem struct{ Type string }
	if status >= http.StatusBadRequest {
		_ = json.Unmarshal(body, &problem)
	}
	return s.Rejections[problem.Type]
}

// Request is a request to send.
type Request struct {
	Method, Path, Body string
	Headers            []string // lines "Name: value"
}

// Send sends a request and checks the response against the contract. It fails the test if no response comes.
func (c *Client) Send(r Request) Answer {
	c.T.Helper()
	a, err := c.Try(r)
	testenv.Must(c.T, err)
	return a
}

// RequestTimeout is how long a client waits for a response. The service gives up on a request sooner.
const RequestTimeout = 20 * time.Second

// Try is [Client.Send], but returns an error where Send fails the test. With an error, the status of the answer is 0 if
// no response came. Otherwise the response came but breaks the contract.
func (c *Client) Try(r Request) (Answer, error) {
	ctx, cancel := context.WithTimeout(c.T.Context(), RequestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.Method, c.Base+r.Path, strings.NewReader(r.Body))
	if err != nil {
		return Answer{Ended: time.Now()}, err
	}
	if r.Body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	for _, line := range r.Headers {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Set(name, value)
	}
	began := time.Now()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return Answer{Ended: time.Now(), Took: time.Since(began)}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	ended := time.Now()
	if err != nil {
		return Answer{Ended: ended, Took: ended.Sub(began)}, err
	}
	a := Answer{resp.StatusCode, resp.Header, body, ended, ended.Sub(began),
		c.service.rejectionOf(resp.StatusCode, body)}
	promised, err := c.service.Contract()
	if err != nil {
		return a, err
	}
	return a, promised.Check(req, a.Status, a.Header, a.Body)
}

// admitted sends a request. It repeats a request that the service rejects because it is overloaded, as clients should:
// a loaded machine may be too slow for a few requests, and others may keep the locks that a request needs.
func (c *Client) admitted(r Request) (a Answer) {
	c.T.Helper()
	Eventually(c.T, r.Method+" "+r.Path+" is not rejected because of overload", func() bool {
		a = c.Send(r)
		return a.Rejected != RejectedOverloaded
	})
	return a
}

// Expect sends a request until it is admitted, and fails the test if the response has another status.
func (c *Client) Expect(status int, r Request) Answer {
	c.T.Helper()
	a := c.admitted(r)
	if a.Status != status {
		fatalBreach(c.T, "%s %s: %d, want %d: %s", r.Method, r.Path, a.Status, status, a.Body)
	}
	return a
}

// Get sends a GET request, which must be answered with the status 200.
func (c *Client) Get(path string) Answer {
	c.T.Helper()
	return c.Expect(http.StatusOK, Request{Method: "GET", Path: path})
}

// Post sends a POST request without a body, which must be answered with the status.
func (c *Client) Post(status int, path string) Answer {
	c.T.Helper()
	return c.Expect(status, Request{Method: "POST", Path: path})
}

// SignUp returns a new customer of a process. A service without customers lets all clients do everything.
func (p *Process) SignUp() *Client {
	p.t.Helper()
	c := p.anonymous()
	testenv.Must(p.t, c.signUp())
	return c
}

// signUp gets the token of a new customer.
func (c *Client) signUp() error {
	path := c.service.SignUp
	if path == "" {
		return nil
	}
	a := c.admitted(Request{Method: http.MethodPost, Path: path})
	var answer struct{ Token string }
	if err := json.Unmarshal(a.Body, &answer); err != nil || a.Status != http.StatusCreated || answer.Token == "" {
		return wrong("SignUp", "POST %s is answered with %d %s, want 201 and a token", path, a.Status, a.Body)
	}
	c.Token = answer.Token
	return nil
}

// anonymous returns a client of a process without a token.
func (p *Process) anonymous() *Client {
	return &Client{service: p.service, T: p.t, Base: p.URL, secret: func(id string) string {
		if p.service.Secret == "" {
			return ""
		}
		secret, err := p.service.secret(p.t.Context(), OpenDatabase(p.t, p.database), id)
		testenv.Must(p.t, err)
		return secret
	}}
}

// Operator returns an operator of a process.
func (p *Process) Operator() *Client {
	c := p.anonymous()
	c.Token = p.OpsToken
	return c
}

// Create creates a row.
func (c *Client) Create() Row {
	c.T.Helper()
	return c.RowOf(c.Expect(http.StatusCreated, c.service.Create(c.service.Bodies[0], "")))
}

// Look returns the row with an id.
func (c *Client) Look(id string) Row {
	c.T.Helper()
	return c.RowOf(c.Expect(http.StatusOK, c.service.Get(id)))
}

// RowOf decodes a row.
func (c *Client) RowOf(a Answer) Row {
	c.T.Helper()
	i, err := c.service.Decode(a.Body)
	testenv.Must(c.T, err)
	return i
}

// WaitForTimeout waits until a row is cancelled by its timeout, and returns the time from its deadline until then. A
// row that is pending for much longer than any bound fails the test at once. The database has the machine's clock.
func (c *Client) WaitForTimeout(id string) time.Duration {
	c.T.Helper()
	before := pressureNow()
	var i Row
	Eventually(c.T, "row "+id+" cancelled", func() bool {
		limit := 20 * time.Second
		if before.isBusy() {
			limit *= busySlack
		}
		i = c.Look(id)
		if late := time.Since(i.Deadline); i.Status == Pending && late > limit {
			fatalBreach(c.T, "row %s is pending %v past its deadline", id, late)
		}
		return i.Status == TimedOut || i.Status == Cancelled
	})
	if i.Status != TimedOut || i.CancelledAt.Before(i.Deadline) {
		fatalBreach(c.T, "row %+v was not cancelled by its timeout", i)
	}
	return i.CancelledAt.Sub(i.Deadline)
}

// Owned is a row and its customer.
type Owned struct {
	Row
	Customer *Client
}

// confirmLate confirms a row after its deadline, which must be rejected. The database has the machine's clock.
func (o Owned) confirmLate() {
	c := o.Customer
	c.T.Helper()
	if !Sleep(c.T.Context(), time.Until(o.Deadline)+50*time.Millisecond) {
		c.T.Fatal("the test ended before a deadline")
	}
	if a := c.admitted(c.service.Confirm(o.ID, c.secret(o.ID))); a.Rejected != RejectedLate {
		fatalBreach(c.T, "a row that was due at %v is confirmed later: %d %s, want a rejection",
			o.Deadline, a.Status, a.Body)
	}
}

// Create creates a row for a new customer. Tests that create many rows use it, because the service bounds what one
// customer can have at a time.
func (p *Process) Create() Owned {
	p.t.Helper()
	c := p.SignUp()
	return Owned{c.Create(), c}
}

// WaitForTimeouts waits until all of the rows are cancelled by their timeouts, as this process shows them. It returns
// the longest time from a deadline until then.
func (p *Process) WaitForTimeouts(rows []Owned) (latest time.Duration) {
	p.t.Helper()
	for _, i := range rows {
		c := *i.Customer
		c.Base = p.URL
		latest = max(latest, c.WaitForTimeout(i.ID))
	}
	p.t.Logf("the last of %d timeouts was %v late", len(rows), latest)
	return latest
}

// published returns the number of publishes of timeouts with a result, from the metrics: ok, failed or breaker_open.
func (c *Client) published(result string) int {
	c.T.Helper()
	return int(c.Metric("delay_publishes_total", `kind="`+c.service.Kind+`"`, `result="`+result+`"`))
}

// Metric returns the value of the first metric with a name, without the prefix, and with all the labels. It returns 0
// if there is none.
func (c *Client) Metric(name string, labels ...string) float64 {
	c.T.Helper()
	lines := bufio.NewScanner(strings.NewReader(string(c.Get("/metrics").Body)))
	for lines.Scan() {
		series, value, _ := strings.Cut(lines.Text(), " ")
		family, given, _ := strings.Cut(series, "{")
		lacks := func(label string) bool { return !strings.Contains(given, label) }
		if family != c.service.Program+"_"+name || slices.ContainsFunc(labels, lacks) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		testenv.Must(c.T, err)
		return n
	}
	return 0
}

// stats are some of the operators' figures.
type stats struct {
	Redis  string
	Queue  *struct{ Scheduled int }
	Outbox struct{ Backlog int }
}

// Stats returns the operators' figures.
func (c *Client) Stats() stats {
	c.T.Helper()
	return Decode[stats](c.T, c.Get("/ops/api/stats"))
}
