package order_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// contract says what the service answers.
var contract = sync.OnceValues(func() (*parttest.Contract, error) {
	return parttest.LoadContract("../..")
})

// httpShop is a shop behind its HTTP API. Every answer is checked against the contract.
type httpShop struct {
	*shop
	handler  http.Handler
	contract *parttest.Contract
	tokens   *rest.Tokens
	log      *bytes.Buffer
}

func newHTTPShop(t *testing.T, changes ...func(*order.Config)) *httpShop {
	t.Helper()
	contract, err := contract()
	testenv.Must(t, err)
	s := &httpShop{shop: newShop(t, changes...), contract: contract, tokens: parttest.NewTokens(t),
		log: &bytes.Buffer{}}
	r := parttest.NewRouter(slog.New(slog.NewJSONHandler(s.log, nil)))
	part := s.Part(s.tokens)
	part.Routes(r, r.Group("/ops/api"))
	s.handler = part.Wrap(r)
	return s
}

func decode[T any](t *testing.T, a *httptest.ResponseRecorder) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(a.Body.Bytes(), &v); err != nil {
		t.Fatalf("answer of status %d: %v: %s", a.Code, err, a.Body)
	}
	return v
}

func (s *httpShop) token(t *testing.T, customer uuid.UUID) string {
	t.Helper()
	token, err := s.tokens.Issue(customer)
	testenv.Must(t, err)
	return token
}

// send sends a request with headers ("Name: value"), and checks its answer against the contract.
func (s *httpShop) send(t *testing.T, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	return s.contract.Send(t, s.handler, method, path, body, headers...)
}

// sends sends a request ("POST /path") that must be answered with a status.
func (s *httpShop) sends(t *testing.T, status int, request, body string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	method, path, _ := strings.Cut(request, " ")
	a := s.send(t, method, path, body, headers...)
	if a.Code != status {
		t.Fatalf("%s is answered with %d %s, want %d", request, a.Code, a.Body, status)
	}
	return a
}

// rejects sends a request that must be answered with a problem of a class.
func (s *httpShop) rejects(
	t *testing.T, class rest.Class, request, body string, headers ...string,
) *httptest.ResponseRecorder {
	t.Helper()
	a := s.sends(t, class.Status, request, body, headers...)
	if p := decode[rest.Problem](t, a); p.Type != "/problems/"+class.Code {
		t.Errorf("%s is answered with %s, want %s", request, a.Body, class.Code)
	}
	return a
}

// orderBody returns the body of a request that places an order of one product.
func orderBody(product uuid.UUID, quantity int) string {
	return fmt.Sprintf(`{"items":[{"product_id":%q,"quantity":%d}]}`, product, quantity)
}

// TestHeldOrderJourney extends an order, holds it, and cancels it. The hold ends, and the order is cancelled.
func TestHeldOrderJourney(t *testing.T) {
	t.Parallel()
	s := newHTTPShop(t)
	customer, product := s.Customer(t), s.Product(t, 5)
	auth := "Authorization: Bearer " + s.token(t, customer)
	placed := decode[order.Order](t, s.sends(t, 201, "POST /api/orders", orderBody(product, 2), auth))
	if placed.ExtensionSeconds != extension.Seconds() || !placed.DueAt.Equal(placed.ExpiresAt) {
		t.Errorf("the new order is %+v, want an extension of %v", placed, extension)
	}
	path := "POST /api/orders/" + placed.ID.String()
	for left := int64(ordertest.MaxExtensions - 1); left >= 0; left-- {
		extended := s.sends(t, 200, path+"/extend", "", auth)
		later := time.Duration(ordertest.MaxExtensions-left) * extension
		if o := decode[order.Order](t, extended); !o.ExpiresAt.Equal(placed.ExpiresAt.Add(later)) ||
			o.ExtensionsLeft == nil || *o.ExtensionsLeft != left ||
			strings.Contains(extended.Body.String(), "extension_seconds") != (left > 0) {
			t.Errorf("the answer is %s, want an order that can be extended %d times more", extended.Body, left)
		}
	}
	s.Hold(t, placed.ID)
	s.rejects(t, order.NotExtendable, path+"/extend", "", auth)
	s.rejects(t, order.CheckoutOpen, path+"/pay", "", auth)
	s.rejects(t, order.CheckoutOpen, path+"/cancel", "", auth)
	s.Release(t, placed.ID)
	cancelled := s.sends(t, 200, path+"/cancel", "", auth)
	if decode[order.Order](t, cancelled).CancelReason != order.ByCustomer {
		t.Errorf("cancelling the released order is answered with %s, want a cancelled order", cancelled.Body)
	}
	events := s.sends(t, 200, "GET /api/orders/"+placed.ID.String()+"/events", "", auth)
	if n := len(decode[struct{ Items []order.Event }](t, events).Items); n != 6 {
		t.Errorf("%d events, want 6: %s", n, events.Body)
	}
	if n := strings.Count(s.log.String(), `"order_id":"`+placed.ID.String()+`"`); n != 8 {
		t.Errorf("%d lines of the log name the order, want one for each of 8 requests: %s", n, s.log)
	}
}

// TestInvalidRequests checks the problem that answers each form of invalid request, and that no order is placed. Of the
// requests that package rest rejects, it sends only samples: they show that the routes use package rest, and that the
// contract lists the answers. The tests of package rest send all of them.
func TestInvalidRequests(t *testing.T) {
	t.Parallel()
	s := newHTTPShop(t)
	product, auth := s.Product(t, 5).String(), "Authorization: Bearer "+s.token(t, s.Customer(t))
	unknown := "/api/orders/" + uuid.NewString()
	body := strings.NewReplacer("PRODUCT", product, "UNKNOWN", uuid.NewString(), "'", `"`)
	const place = "POST /api/orders"
	const good = `{'items':[{'product_id':'PRODUCT','quantity':1}]}`
	of := func(quantity string) string { return strings.Replace(good, "1", quantity, 1) }

	for _, test := range []struct {
		name, request, body string
		header              string // another one
		class               rest.Class
		fields              string // pointers and parameters of the field errors
	}{
		{"malformed JSON", place, `{'items':[`, "", rest.Malformed, ""},
		{"text content type", place, good, "Content-Type: text/plain", rest.MediaType, ""},
		{"body over the limit", place, "'" + strings.Repeat("x", 16<<10), "", rest.BodyTooLarge, ""},
		{"idempotency key too long", place, good, "Idempotency-Key: " + strings.Repeat("k", 256),
			rest.Malformed, "Idempotency-Key"},
		{"place: query parameter", "POST /api/orders?limit=1", good, "", rest.Malformed, "limit"},
		{"bad limit and cursor", "GET /api/orders?limit=ten&cursor=x", "", "", rest.Malformed, "limit cursor"},
		{"method not allowed", "DELETE /api/orders", "", "", rest.MethodNotAllowed, ""},

		{"no items", place, `{}`, "", rest.Invalid, "/items"},
		{"items not an array", place, `{'items':{'0':1}}`, "", rest.Invalid, "/items"},
		{"line not an object", place, `{'items':[7]}`, "", rest.Invalid,
			"/items/0/product_id /items/0/quantity"},
		{"unknown fields", place, strings.Replace(good, "]", `],'Items':1,'a/b~c':2`, 1), "", rest.Invalid,
			"/Items /a~1b~0c"},
		{"fractional quantity", place, of("1.5"), "", rest.Invalid, "/items/0/quantity"},
		{"quantity over the limit", place, of("1.001e3"), "", rest.Invalid, "/items/0/quantity"},
		{"errors in several lines", place, `{'items':[{'product_id':'1','quantity':0,'x':1},
			{'product_id':'PRODUCT','quantity':1},{'product_id':'PRODUCT'}]}`, "", rest.Invalid,
			"/items/0/x /items/0/product_id /items/0/quantity /items/2/product_id /items/2/quantity"},
		{"an unknown product", place, `{'items':[{'product_id':'UNKNOWN','quantity':1}]}`, "", order.UnknownProduct,
			"/items/0/product_id"},
		{"out of stock", place, of("6"), "", order.OutOfStock, "/items/0/quantity"},

		{"order id not a UUID", "GET /api/orders/1", "", "", rest.Malformed, "id"},
		{"events: id not a UUID", "GET /api/orders/1/events", "", "", rest.Malformed, "id"},
		{"extend: id not a UUID", "POST /api/orders/1/extend", "", "", rest.Malformed, "id"},
		{"extend: body with a field", "POST " + unknown + "/extend", `{'seconds':1}`, "", rest.Invalid, "/seconds"},
		{"pay: body with a field", "POST " + unknown + "/pay", `{'amount_cents':1}`, "", rest.Invalid, "/amount_cents"},
		{"extend: unknown order", "POST " + unknown + "/extend", "", "", rest.NotFound, ""},
		{"unknown order", "GET " + unknown, "", "", rest.NotFound, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			headers := []string{auth}
			if test.header != "" {
				headers = []string{test.header, auth}
			}
			method, path, _ := strings.Cut(test.request, " ")
			a := s.send(t, method, path, body.Replace(test.body), headers...)
			problem := decode[rest.Problem](t, a)
			if a.Code != test.class.Status || problem.Status != a.Code ||
				problem.Type != "/problems/"+test.class.Code {
				t.Errorf("the answer is %d %s, want %d and %s", a.Code, a.Body, test.class.Status, test.class.Code)
			}
			if problem.Title == "" || problem.Detail == "" || problem.Instance == "" ||
				problem.RequestID != a.Header().Get("X-Request-Id") {
				t.Errorf("the problem lacks a title, detail, instance or request id: %s", a.Body)
			}
			var fields []string
			for _, e := range problem.Errors {
				fields = append(fields, e.Pointer+e.Parameter)
			}
			if got := strings.Join(fields, " "); got != test.fields {
				t.Errorf("field errors are at %q, want %q", got, test.fields)
			}
		})
	}
	if n := testenv.Query[int](t, s.DB, `SELECT count(*) FROM orders`); n != 0 {
		t.Errorf("%d orders were placed, want 0", n)
	}
	s.CheckInvariants(t, 0)
}

func TestParallelRequestsWithOneKeyPlaceOneOrder(t *testing.T) {
	s := newHTTPShop(t)
	product := s.Product(t, 10)
	auth := "Authorization: Bearer " + s.token(t, s.Customer(t))
	answers := make([]*httptest.ResponseRecorder, 50)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() {
			answers[i] = s.send(t, "POST", "/api/orders", orderBody(product, 7), auth, "Idempotency-Key: the same")
		})
	}
	wg.Wait()
	ids := map[uuid.UUID]int{}
	statuses := map[int]int{}
	for _, a := range answers {
		statuses[a.Code]++
		ids[decode[order.Order](t, a).ID]++
	}
	if statuses[http.StatusCreated] != 1 || statuses[http.StatusOK] != 49 || len(ids) != 1 {
		t.Errorf("answers are %v by status and %v by order; want one 201, 49 times 200, and one order", statuses, ids)
	}
	if got := s.Available(t, product); got != 3 {
		t.Errorf("%d available, want 3", got)
	}
	if n := testenv.Query[int](t, s.DB, `SELECT count(*) FROM outbox`); n != 1 {
		t.Errorf("%d outbox rows, want 1", n)
	}
	s.CheckInvariants(t, 0)
}

// TestPagination reads all pages of a list while new orders are added at its start: they neither shift nor repeat the
// older ones.
func TestPagination(t *testing.T) {
	t.Parallel()
	s := newHTTPShop(t)
	customer, product := s.Customer(t), s.Product(t, 1000)
	auth := "Authorization: Bearer " + s.token(t, customer)
	s.MustPlace(t, s.Customer(t), line(product, 1)) // of another customer
	for i := range 25 {
		o := s.MustPlace(t, customer, line(product, 1))
		if i >= 10 && i < 15 { // five orders have the same created_at
			s.Exec(t,
				`UPDATE orders SET created_at = (SELECT min(created_at) FROM orders
					WHERE customer_id = $1) + interval '1 us' WHERE id = $2`, customer, o.ID)
		}
	}
	want := testenv.QueryAll[uuid.UUID](t, s.DB,
		`SELECT id FROM orders WHERE customer_id = $1 ORDER BY created_at DESC, id DESC`, customer)

	var got []uuid.UUID
	for query := "?limit=4"; ; {
		a := s.send(t, "GET", "/api/orders"+query, "", auth)
		page := decode[struct {
			Items      []order.Order `json:"items"`
			NextCursor *string       `json:"next_cursor"`
		}](t, a)
		for _, o := range page.Items {
			got = append(got, o.ID)
		}
		if page.NextCursor == nil {
			break
		}
		if len(page.Items) != 4 {
			t.Fatalf("a page has %d orders, want 4", len(page.Items))
		}
		s.MustPlace(t, customer, line(product, 1))
		query = "?limit=4&cursor=" + *page.NextCursor
	}
	if !slices.Equal(got, want) {
		t.Errorf("the pages list %d orders %v, want the %d orders %v", len(got), got, len(want), want)
	}
	if first := decode[struct{ Items []order.Order }](t,
		s.send(t, "GET", "/api/orders", "", auth)).Items; len(first) != 20 {
		t.Errorf("a page without a limit has %d orders, want 20", len(first))
	}
}

// TestUnauthorized sends requests with a token of nobody to every path that needs one. The tests of package rest have
// the other forms of wrong tokens.
func TestUnauthorized(t *testing.T) {
	s := newHTTPShop(t)
	own := "/api/orders/" + s.Customer(t).String()
	for _, request := range []string{
		"GET /api/orders", "POST /api/orders", "GET " + own, "GET " + own + "/events",
		"POST " + own + "/pay", "POST " + own + "/cancel", "POST " + own + "/extend",
	} {
		a := s.rejects(t, rest.Unauthorized, request, "", "Authorization: Bearer x.y.z")
		if a.Header().Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("%s: the headers are %v, want WWW-Authenticate: Bearer", request, a.Header())
		}
	}
}

// TestClientsWithoutBodies has a client send the headers of more placements than may be under way, and no bodies.
// Another customer's placements succeed.
func TestClientsWithoutBodies(t *testing.T) {
	t.Parallel()
	s := newHTTPShop(t)
	server := httptest.NewServer(s.handler)
	defer server.Close()
	product, token := s.Product(t, 10), s.token(t, s.Customer(t))
	var clients sync.WaitGroup
	for range 1100 {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		testenv.Must(t, err)
		defer conn.Close()
		clients.Go(func() {
			fmt.Fprintf(conn,
				"POST /api/orders HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer %s\r\nContent-Type: "+
					"application/json\r\n"+
					"Expect: 100-continue\r\nContent-Length: 90\r\n\r\n", token)
			// The server asks for the body when something begins to read it.
			if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil ||
				!strings.Contains(line, "100 Continue") {
				t.Errorf("the headers are answered with %q, %v; want 100 Continue", line, err)
			}
		})
	}
	clients.Wait()
	for range 10 {
		auth := "Authorization: Bearer " + s.token(t, s.Customer(t))
		s.sends(t, 201, "POST /api/orders", orderBody(product, 1), auth)
	}
}

// TestRequestsWithoutDatabase checks that the API rejects requests, and advises the client how to repeat them.
func TestRequestsWithoutDatabase(t *testing.T) {
	s := newHTTPShop(t)
	product := s.Product(t, 1)
	auth := "Authorization: Bearer " + s.token(t, s.Customer(t))
	testenv.DisablePostgres(t, s.URL)
	for request, advice := range map[string]string{
		"GET /api/products": "Repeat",
		"GET /api/orders":   "Repeat",
		"POST /api/orders":  "same Idempotency-Key",
		"POST /api/orders/" + uuid.NewString() + "/pay": "paid once",
	} {
		body := ""
		if request == "POST /api/orders" {
			body = orderBody(product, 1)
		}
		a := s.rejects(t, rest.Unavailable, request, body, auth)
		if !strings.Contains(decode[rest.Problem](t, a).Detail, advice) || a.Header().Get("Retry-After") == "" {
			t.Errorf("%s: the answer is %v %s, want Retry-After and a detail with %q", request, a.Header(), a.Body,
				advice)
		}
	}
}
