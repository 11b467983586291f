package order_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
	"github.com/gin-gonic/gin"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
)

// site is a shop behind its HTTP API, whose every answer is held against the contract.
type site struct {
	*shop
	handler  http.Handler
	contract routers.Router
	tokens   *order.Tokens
	log      *bytes.Buffer
}

var tokenKey = []byte("a key for tests, of 32 bytes....")

func newSite(t *testing.T) *site {
	t.Helper()
	gin.SetMode(gin.ReleaseMode)
	tokens, err := order.NewTokens(tokenKey)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{shop: newShop(t), contract: contract(t), tokens: tokens, log: &bytes.Buffer{}}
	log := slog.New(slog.NewJSONHandler(s.log, nil))
	r := gin.New()
	r.HandleMethodNotAllowed = true
	r.Use(order.RequestID(), order.Log(log, "/healthz"), order.Recover(log))
	r.NoRoute(order.NotFound)
	r.NoMethod(order.MethodNotAllowed)
	s.Routes(r, tokens, order.NewFeed(nil, log, prometheus.NewRegistry()))
	r.GET("/panic", func(*gin.Context) { panic("as asked") })
	r.GET("/healthz", func(c *gin.Context) { c.JSON(http.StatusOK, gin.H{"status": "ok", "version": "a test"}) })
	s.handler = r
	return s
}

func contract(t *testing.T) routers.Router {
	t.Helper()
	doc, err := openapi3.NewLoader().LoadFromFile("../../cmd/shop/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	router, err := legacy.NewRouter(doc) // validates the document, examples included
	if err != nil {
		t.Fatal(err)
	}
	return router
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) problem(t *testing.T) order.Problem {
	t.Helper()
	return decode[order.Problem](t, a)
}

func decode[T any](t *testing.T, a answer) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(a.body, &v); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	return v
}

func (s *site) token(t *testing.T, customer uuid.UUID) string {
	t.Helper()
	token, err := s.tokens.Issue(customer)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// send sends a request with headers ("Name: value"); a body is sent as JSON unless a header says otherwise.
func (s *site) send(t *testing.T, method, path, body string, headers ...string) answer {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Content-Type" {
			request.Header.Del(name)
		}
		request.Header.Add(name, value)
	}
	recorder := httptest.NewRecorder()
	s.handler.ServeHTTP(recorder, request)
	a := answer{recorder.Code, recorder.Header(), recorder.Body.Bytes()}
	s.holdToContract(t, request, a)
	return a
}

func (s *site) holdToContract(t *testing.T, request *http.Request, a answer) {
	t.Helper()
	if a.header.Get("X-Request-Id") == "" {
		t.Errorf("%s %s: no request id", request.Method, request.URL)
	}
	route, params, err := s.contract.FindRoute(request)
	if err != nil {
		if a.status != http.StatusNotFound && a.status != http.StatusMethodNotAllowed && request.URL.Path != "/panic" {
			t.Errorf("%s %s is not in the contract: %v", request.Method, request.URL, err)
		}
		return
	}
	err = openapi3filter.ValidateResponse(t.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: &openapi3filter.RequestValidationInput{Request: request, PathParams: params, Route: route},
		Status:                 a.status, Header: a.header, Body: io.NopCloser(bytes.NewReader(a.body)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	})
	if err != nil {
		t.Errorf("%s %s: the answer breaks the contract: %v", request.Method, request.URL, err)
	}
	if a.status >= 400 && a.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%s %s: a problem of type %s", request.Method, request.URL, a.header.Get("Content-Type"))
	}
	if part := testenv.Inside(a.body); a.status >= 400 && part != "" {
		t.Errorf("%s %s: the problem tells %q: %s", request.Method, request.URL, part, a.body)
	}
}

func orderBody(product uuid.UUID, quantity int) string {
	return fmt.Sprintf(`{"items":[{"product_id":%q,"quantity":%d}]}`, product, quantity)
}

func TestTheCustomersWay(t *testing.T) {
	s := newSite(t)
	product := s.product(t, 5)

	signUp := s.send(t, "POST", "/api/customers", "")
	if signUp.status != http.StatusCreated {
		t.Fatal(signUp.status, string(signUp.body))
	}
	auth := "Authorization: Bearer " + decode[struct{ Token string }](t, signUp).Token

	if got := decode[struct{ Items []order.Product }](t, s.send(t, "GET", "/api/products", "")).Items; len(got) != 1 || got[0].Available != 5 {
		t.Errorf("products are %+v", got)
	}
	placed := s.send(t, "POST", "/api/orders", orderBody(product, 2), auth, "Idempotency-Key: one")
	o := decode[order.Order](t, placed)
	path := "/api/orders/" + o.ID.String()
	if placed.status != http.StatusCreated || placed.header.Get("Location") != path {
		t.Fatal(placed.status, placed.header, string(placed.body))
	}
	if again := s.send(t, "POST", "/api/orders", orderBody(product, 2), auth, "Idempotency-Key: one"); again.status != http.StatusOK ||
		again.header.Get("Location") != path || decode[order.Order](t, again).ID != o.ID {
		t.Error(again.status, string(again.body))
	}
	if got := s.send(t, "GET", path, "", auth); got.status != http.StatusOK || decode[order.Order](t, got).ID != o.ID {
		t.Error(got.status, string(got.body))
	}
	for range 2 {
		if paid := s.send(t, "POST", path+"/pay", "", auth); paid.status != http.StatusOK || decode[order.Order](t, paid).Status != order.Paid {
			t.Error(paid.status, string(paid.body))
		}
	}
	if refused := s.send(t, "POST", path+"/cancel", "{}", auth); refused.status != http.StatusConflict || refused.problem(t).Type != "/problems/order-paid" {
		t.Error(refused.status, string(refused.body))
	}
	if got := decode[struct{ Items []order.Event }](t, s.send(t, "GET", path+"/events", "", auth)).Items; len(got) != 2 {
		t.Errorf("events are %+v", got)
	}
	if other := s.send(t, "GET", path, "", "Authorization: Bearer "+s.token(t, s.customer(t))); other.status != http.StatusNotFound {
		t.Error(other.status, string(other.body))
	}

	late := decode[order.Order](t, s.send(t, "POST", "/api/orders", orderBody(product, 3), auth))
	s.expire(t, late.ID)
	s.cancelDue(t, late.ID)
	refused := s.send(t, "POST", "/api/orders/"+late.ID.String()+"/pay", "", auth)
	if problem := refused.problem(t); problem.Status != http.StatusConflict || problem.Type != "/problems/deadline-passed" || !strings.Contains(problem.Detail, "deadline") {
		t.Errorf("late payment: %+v", problem)
	}
	if got := decode[struct{ Items []order.Product }](t, s.send(t, "GET", "/api/products", "")).Items; got[0].Available != 3 {
		t.Errorf("%d available, want 3", got[0].Available)
	}
	if log := s.log.String(); !strings.Contains(log, `"order_id":"`+o.ID.String()) || !strings.Contains(log, `"request_id":"`+placed.header.Get("X-Request-Id")) {
		t.Errorf("log names no order or request:\n%s", log)
	}
}

func TestBadInput(t *testing.T) {
	s := newSite(t)
	product, few := s.product(t, 5).String(), s.product(t, 1).String()
	auth := "Authorization: Bearer " + s.token(t, s.customer(t))
	good := fmt.Sprintf(`{"items":[{"product_id":%q,"quantity":1}]}`, product)
	items := func(lines ...string) string { return `{"items":[` + strings.Join(lines, ",") + `]}` }
	of := func(quantity string) string {
		return items(fmt.Sprintf(`{"product_id":%q,"quantity":%s}`, product, quantity))
	}

	for name, test := range map[string]struct {
		method, path, body string
		headers            []string
		status             int
		code               order.Code
		at                 []string // pointers and parameters
	}{
		"no body":                 {"POST", "/api/orders", "", []string{"Content-Type: application/json"}, 400, order.CodeMalformed, nil},
		"malformed JSON":          {"POST", "/api/orders", `{"items":[`, nil, 400, order.CodeMalformed, nil},
		"no JSON at all":          {"POST", "/api/orders", `items=1`, nil, 400, order.CodeMalformed, nil},
		"trailing data":           {"POST", "/api/orders", good + good, nil, 400, order.CodeMalformed, nil},
		"a field twice":           {"POST", "/api/orders", `{"items":[],` + good[1:], nil, 400, order.CodeMalformed, nil},
		"a line's field twice":    {"POST", "/api/orders", items(`{"product_id":"` + product + `","quantity":1,"quantity":2}`), nil, 400, order.CodeMalformed, nil},
		"nested without end":      {"POST", "/api/orders", strings.Repeat("[", 15_000), nil, 400, order.CodeMalformed, nil},
		"half an object":          {"POST", "/api/orders", `{"items"`, nil, 400, order.CodeMalformed, nil},
		"a comma too many":        {"POST", "/api/orders", `{"items":[],}`, nil, 400, order.CodeMalformed, nil},
		"compressed":              {"POST", "/api/orders", good, []string{"Content-Encoding: gzip"}, 415, order.CodeMediaType, nil},
		"trailing garbage":        {"POST", "/api/orders", good + "]", nil, 400, order.CodeMalformed, nil},
		"no content type":         {"POST", "/api/orders", good, []string{"Content-Type: "}, 415, order.CodeMediaType, nil},
		"wrong content type":      {"POST", "/api/orders", good, []string{"Content-Type: text/plain"}, 415, order.CodeMediaType, nil},
		"form":                    {"POST", "/api/orders", good, []string{"Content-Type: application/x-www-form-urlencoded"}, 415, order.CodeMediaType, nil},
		"another charset":         {"POST", "/api/orders", good, []string{"Content-Type: application/json; charset=latin1"}, 415, order.CodeMediaType, nil},
		"body over the limit":     {"POST", "/api/orders", `{"items":"` + strings.Repeat("x", 16<<10) + `"}`, nil, 413, order.CodeBodyTooLarge, nil},
		"spaces over the limit":   {"POST", "/api/orders", good + strings.Repeat(" ", 16<<10), nil, 413, order.CodeBodyTooLarge, nil},
		"no object":               {"POST", "/api/orders", `[]`, nil, 422, order.CodeInvalid, []string{""}},
		"null":                    {"POST", "/api/orders", `null`, nil, 422, order.CodeInvalid, []string{""}},
		"no items":                {"POST", "/api/orders", `{}`, nil, 422, order.CodeInvalid, []string{"/items"}},
		"items of another type":   {"POST", "/api/orders", `{"items":{"0":1}}`, nil, 422, order.CodeInvalid, []string{"/items"}},
		"empty items":             {"POST", "/api/orders", items(), nil, 422, order.CodeInvalid, []string{"/items"}},
		"a line of another type":  {"POST", "/api/orders", items(`7`), nil, 422, order.CodeInvalid, []string{"/items/0/product_id", "/items/0/quantity"}},
		"unknown field":           {"POST", "/api/orders", `{"items":[{"product_id":"` + product + `","quantity":1}],"Items":1,"a/b~c":2}`, nil, 422, order.CodeInvalid, []string{"/Items", "/a~1b~0c"}},
		"unknown field of a line": {"POST", "/api/orders", items(`{"product_id":"` + product + `","quantity":1,"price_cents":1}`), nil, 422, order.CodeInvalid, []string{"/items/0/price_cents"}},
		"zero":                    {"POST", "/api/orders", of("0"), nil, 422, order.CodeInvalid, []string{"/items/0/quantity"}},
		"negative":                {"POST", "/api/orders", of("-1"), nil, 422, order.CodeInvalid, []string{"/items/0/quantity"}},
		"too many":                {"POST", "/api/orders", of("1001"), nil, 422, order.CodeInvalid, []string{"/items/0/quantity"}},
		"huge":                    {"POST", "/api/orders", of("99999999999999999999999999"), nil, 422, order.CodeInvalid, []string{"/items/0/quantity"}},
		"astronomic":              {"POST", "/api/orders", of("1e400"), nil, 422, order.CodeInvalid, []string{"/items/0/quantity"}},
		"a fraction":              {"POST", "/api/orders", of("1.5"), nil, 422, order.CodeInvalid, []string{"/items/0/quantity"}},
		"a string":                {"POST", "/api/orders", of(`"1"`), nil, 422, order.CodeInvalid, []string{"/items/0/quantity"}},
		"bad product UUID":        {"POST", "/api/orders", items(`{"product_id":"1","quantity":1}`), nil, 422, order.CodeInvalid, []string{"/items/0/product_id"}},
		"odd product UUID":        {"POST", "/api/orders", items(`{"product_id":"{` + product + `}","quantity":1}`), nil, 422, order.CodeInvalid, []string{"/items/0/product_id"}},
		"everything at once":      {"POST", "/api/orders", items(`{"product_id":"1","quantity":0,"x":1}`, `{"product_id":"`+product+`","quantity":1}`, `{"product_id":"`+product+`"}`), nil, 422, order.CodeInvalid, []string{"/items/0/x", "/items/0/product_id", "/items/0/quantity", "/items/2/product_id", "/items/2/quantity"}},
		"51 lines":                {"POST", "/api/orders", items(slices.Repeat([]string{`{"product_id":"` + product + `","quantity":1}`}, 51)...), nil, 422, order.CodeInvalid, []string{"/items"}},
		"unknown products":        {"POST", "/api/orders", items(`{"product_id":"`+uuid.NewString()+`","quantity":1}`, `{"product_id":"`+product+`","quantity":1}`, `{"product_id":"`+uuid.NewString()+`","quantity":1}`), nil, 422, order.CodeUnknownProduct, []string{"/items/0/product_id", "/items/2/product_id"}},
		"out of stock":            {"POST", "/api/orders", items(`{"product_id":"`+product+`","quantity":6}`, `{"product_id":"`+few+`","quantity":2}`), nil, 409, order.CodeOutOfStock, []string{"/items/0/quantity", "/items/1/quantity"}},
		"empty key":               {"POST", "/api/orders", good, []string{"Idempotency-Key: "}, 400, order.CodeMalformed, []string{"Idempotency-Key"}},
		"key too long":            {"POST", "/api/orders", good, []string{"Idempotency-Key: " + strings.Repeat("k", 256)}, 400, order.CodeMalformed, []string{"Idempotency-Key"}},
		"key not printable":       {"POST", "/api/orders", good, []string{"Idempotency-Key: a\tb"}, 400, order.CodeMalformed, []string{"Idempotency-Key"}},
		"key not ASCII":           {"POST", "/api/orders", good, []string{"Idempotency-Key: clé"}, 400, order.CodeMalformed, []string{"Idempotency-Key"}},
		"two keys":                {"POST", "/api/orders", good, []string{"Idempotency-Key: a", "Idempotency-Key: b"}, 400, order.CodeMalformed, []string{"Idempotency-Key"}},
		"bad order UUID":          {"GET", "/api/orders/1", "", nil, 400, order.CodeMalformed, []string{"id"}},
		"odd order UUID":          {"GET", "/api/orders/" + strings.ReplaceAll(product, "-", ""), "", nil, 400, order.CodeMalformed, []string{"id"}},
		"bad UUID of events":      {"GET", "/api/orders/1/events", "", nil, 400, order.CodeMalformed, []string{"id"}},
		"bad UUID to pay":         {"POST", "/api/orders/1/pay", "", nil, 400, order.CodeMalformed, []string{"id"}},
		"bad UUID to cancel":      {"POST", "/api/orders/1/cancel", "", nil, 400, order.CodeMalformed, []string{"id"}},
		"no such order":           {"GET", "/api/orders/" + uuid.NewString(), "", nil, 404, order.CodeNotFound, nil},
		"paying a sum":            {"POST", "/api/orders/" + uuid.NewString() + "/pay", `{"amount_cents":1}`, nil, 422, order.CodeInvalid, []string{"/amount_cents"}},
		"paying text":             {"POST", "/api/orders/" + uuid.NewString() + "/pay", `1`, []string{"Content-Type: text/plain"}, 415, order.CodeMediaType, nil},
		"limit 0":                 {"GET", "/api/orders?limit=0", "", nil, 400, order.CodeMalformed, []string{"limit"}},
		"limit 101":               {"GET", "/api/orders?limit=101", "", nil, 400, order.CodeMalformed, []string{"limit"}},
		"no limit":                {"GET", "/api/orders?limit=", "", nil, 400, order.CodeMalformed, []string{"limit"}},
		"bad limit and cursor":    {"GET", "/api/orders?limit=ten&cursor=x", "", nil, 400, order.CodeMalformed, []string{"limit", "cursor"}},
		"cursor of garbage":       {"GET", "/api/orders?cursor=%00%ff", "", nil, 400, order.CodeMalformed, []string{"cursor"}},
		"limit twice":             {"GET", "/api/orders?limit=1&limit=2", "", nil, 400, order.CodeMalformed, []string{"limit"}},
		"unknown parameters":      {"GET", "/api/orders?limit=1&page=2&Cursor=x", "", nil, 400, order.CodeMalformed, []string{"Cursor", "page"}},
		"a parameter to place":    {"POST", "/api/orders?limit=1", good, nil, 400, order.CodeMalformed, []string{"limit"}},
		"a broken query":          {"GET", "/api/orders?limit=%zz", "", nil, 400, order.CodeMalformed, nil},
		"a semicolon":             {"GET", "/api/orders?limit=1;cursor=x", "", nil, 400, order.CodeMalformed, nil},
		"no such path":            {"GET", "/api/nothing", "", nil, 404, order.CodeNotFound, nil},
		"no such method":          {"DELETE", "/api/orders", "", nil, 405, order.CodeMethodNotAllowed, nil},
	} {
		t.Run(name, func(t *testing.T) {
			a := s.send(t, test.method, test.path, test.body, append(test.headers, auth)...)
			problem := a.problem(t)
			if a.status != test.status || problem.Status != test.status || problem.Type != "/problems/"+string(test.code) {
				t.Errorf("answered %d %s, want %d %s", a.status, a.body, test.status, test.code)
			}
			if problem.Title == "" || problem.Detail == "" || problem.Instance == "" || problem.RequestID != a.header.Get("X-Request-Id") {
				t.Errorf("an incomplete problem: %s", a.body)
			}
			var at []string
			for _, fault := range problem.Errors {
				at = append(at, fault.Pointer+fault.Parameter)
			}
			if !slices.Equal(at, test.at) {
				t.Errorf("faults are at %q, want %q", at, test.at)
			}
		})
	}
	if n := query[int](t, s.shop, `SELECT count(*) FROM orders`); n != 0 {
		t.Errorf("%d orders came of it", n)
	}
	s.keepsPromise(t, 0)
}

func TestDuplicateLinesAreBothNamed(t *testing.T) {
	s := newSite(t)
	product := s.product(t, 5)
	l := fmt.Sprintf(`{"product_id":%q,"quantity":1}`, product)
	a := s.send(t, "POST", "/api/orders", `{"items":[`+l+`,`+l+`]}`, "Authorization: Bearer "+s.token(t, s.customer(t)))
	if faults := a.problem(t).Errors; len(faults) != 1 || faults[0].Pointer != "/items/1/product_id" || !strings.Contains(faults[0].Detail, "/items/0/product_id") {
		t.Errorf("faults are %+v", faults)
	}
}

func TestParallelPostsWithOneKeyMakeOneOrder(t *testing.T) {
	s := newSite(t)
	product := s.product(t, 10)
	auth := "Authorization: Bearer " + s.token(t, s.customer(t))
	answers := make([]answer, 50)
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
		statuses[a.status]++
		ids[decode[order.Order](t, a).ID]++
	}
	if statuses[http.StatusCreated] != 1 || statuses[http.StatusOK] != 49 || len(ids) != 1 {
		t.Errorf("answers by status are %v, by order %v", statuses, ids)
	}
	if got := s.available(t, product); got != 3 {
		t.Errorf("%d available, want 3", got)
	}
	if n := query[int](t, s.shop, `SELECT count(*) FROM outbox`); n != 1 {
		t.Errorf("%d outbox rows", n)
	}
	s.keepsPromise(t, 0)
}

// TestPages walks through a list while it grows at its start.
func TestPages(t *testing.T) {
	s := newSite(t)
	customer, product := s.customer(t), s.product(t, 1000)
	auth := "Authorization: Bearer " + s.token(t, customer)
	s.place(t, s.customer(t), line(product, 1)) // another's
	for i := range 25 {
		o := s.place(t, customer, line(product, 1))
		if i >= 10 && i < 15 { // placed in the same instant
			s.exec(t, `UPDATE orders SET created_at = (SELECT min(created_at) FROM orders WHERE customer_id = $1) + interval '1 us' WHERE id = $2`, customer, o.ID)
		}
	}
	want := s.ids(t, `SELECT id FROM orders WHERE customer_id = $1 ORDER BY created_at DESC, id DESC`, customer)

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
			t.Fatalf("a page of %d", len(page.Items))
		}
		s.place(t, customer, line(product, 1))
		query = "?limit=4&cursor=" + *page.NextCursor
	}
	if !slices.Equal(got, want) {
		t.Errorf("walked over %d orders, want the %d that there were", len(got), len(want))
	}
	if first := decode[struct{ Items []order.Order }](t, s.send(t, "GET", "/api/orders", "", auth)).Items; len(first) != 20 {
		t.Errorf("a page of %d without a limit, want 20", len(first))
	}
}

func TestCookie(t *testing.T) {
	s := newSite(t)
	for name, test := range map[string]struct {
		headers []string
		secure  bool
	}{
		"plain":              {nil, false},
		"behind a TLS proxy": {[]string{"X-Forwarded-Proto: https"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := s.send(t, "POST", "/api/customers", "", test.headers...)
			cookie, err := http.ParseSetCookie(a.header.Get("Set-Cookie"))
			if err != nil {
				t.Fatal(err)
			}
			if !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || cookie.Path != "/api" || cookie.MaxAge != 30*24*3600 || cookie.Secure != test.secure {
				t.Errorf("cookie is %v", cookie)
			}
			if got := s.send(t, "GET", "/api/orders", "", "Cookie: shop_token="+cookie.Value); got.status != http.StatusOK {
				t.Errorf("with the cookie: %d %s", got.status, got.body)
			}
			// What is meant for a proxy does not hide the cookie.
			if got := s.send(t, "GET", "/api/orders", "", "Cookie: shop_token="+cookie.Value, "Authorization: Basic eDp5"); got.status != http.StatusOK {
				t.Errorf("with the cookie and basic authorization: %d %s", got.status, got.body)
			}
			// A bearer token that is wrong is not made good by a cookie.
			if got := s.send(t, "GET", "/api/orders", "", "Cookie: shop_token="+cookie.Value, "Authorization: Bearer x"); got.status != http.StatusUnauthorized {
				t.Errorf("with the cookie and a wrong token: %d %s", got.status, got.body)
			}
		})
	}
}

func TestUnauthorized(t *testing.T) {
	s := newSite(t)
	customer := s.customer(t)
	for name, headers := range map[string][]string{
		"nothing":            nil,
		"empty":              {"Authorization: "},
		"no token":           {"Authorization: Bearer"},
		"another scheme":     {"Authorization: Basic " + s.token(t, customer)},
		"no JWT":             {"Authorization: Bearer x.y.z"},
		"a cookie of nobody": {"Cookie: shop_token=x"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, path := range []string{"GET /api/orders", "POST /api/orders", "GET /api/orders/" + customer.String(), "GET /api/orders/" + customer.String() + "/events",
				"POST /api/orders/" + customer.String() + "/pay", "POST /api/orders/" + customer.String() + "/cancel"} {
				method, path, _ := strings.Cut(path, " ")
				body := ""
				if path == "/api/orders" && method == "POST" {
					body = orderBody(s.product(t, 1), 1)
				}
				a := s.send(t, method, path, body, headers...)
				if a.status != http.StatusUnauthorized || a.header.Get("WWW-Authenticate") != "Bearer" || a.problem(t).Type != "/problems/unauthorized" {
					t.Errorf("%s %s: %d %s", method, path, a.status, a.body)
				}
			}
		})
	}
}

func TestRequestID(t *testing.T) {
	s := newSite(t)
	for id, kept := range map[string]bool{
		"a-sane_id.1": true, "": false, strings.Repeat("x", 65): false, "in two words": false, "a\"b": false,
	} {
		a := s.send(t, "GET", "/api/products", "", "X-Request-ID: "+id)
		if got := a.header.Get("X-Request-Id"); (got == id) != kept || got == "" {
			t.Errorf("sent %q, got %q", id, got)
		}
	}
}

func TestPanicIsAProblem(t *testing.T) {
	s := newSite(t)
	a := s.send(t, "GET", "/panic", "", "X-Request-ID: find-me")
	if p := a.problem(t); a.status != 500 || p.Type != "/problems/internal" || p.RequestID != "find-me" || strings.Contains(p.Detail, "as asked") {
		t.Errorf("answered %d %s", a.status, a.body)
	}
	if log := s.log.String(); !strings.Contains(log, "as asked") || !strings.Contains(log, "http_test.go") || !strings.Contains(log, "find-me") {
		t.Errorf("logged %s", log)
	}
}

func TestLogIsQuietAboutWhatMachinesAsk(t *testing.T) {
	s := newSite(t)
	s.send(t, "GET", "/healthz", "")
	s.send(t, "GET", "/api/products", "")
	if log := s.log.String(); strings.Contains(log, "/healthz") || !strings.Contains(log, "/api/products") {
		t.Errorf("logged %s", log)
	}
}

// TestLogBoundsPaths: a client must not fill the log with one request.
func TestLogBoundsPaths(t *testing.T) {
	s := newSite(t)
	s.send(t, "GET", "/api/"+strings.Repeat("é", 4000), "")
	s.send(t, strings.Repeat("X", 4000), "/api/orders", "")
	if log := s.log.String(); len(log) > 2000 || !strings.Contains(log, `é…"`) {
		t.Errorf("logged %d bytes: %.400s", len(log), log)
	}
}

// TestSlowBody has the server wait in vain for a body, and for its end.
func TestSlowBody(t *testing.T) {
	s := newSite(t)
	server := httptest.NewUnstartedServer(s.handler)
	server.Config.ReadTimeout = 100 * time.Millisecond
	server.Start()
	defer server.Close()
	auth := "Authorization: Bearer " + s.token(t, s.customer(t))
	for _, path := range []string{"/api/customers", "/api/orders", "/api/orders/" + uuid.NewString() + "/pay"} {
		for _, part := range []string{"", `{"items":`} {
			a := s.sendHalf(t, server.Listener.Addr().String(), path, part, auth)
			if a.status != http.StatusRequestTimeout || a.problem(t).Type != "/problems/request-timeout" {
				t.Errorf("%s with %q of its body: %d %v %s", path, part, a.status, a.header, a.body)
			}
		}
	}
}

// sendHalf sends a request whose body stops, and reads the answer.
func (s *site) sendHalf(t *testing.T, addr, path, part, header string) answer {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: shop\r\nContent-Type: application/json\r\n%s\r\nContent-Length: 100\r\n\r\n%s", path, header, part)
	request := httptest.NewRequestWithContext(t.Context(), "POST", path, nil)
	resp, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := answer{resp.StatusCode, resp.Header, body}
	s.holdToContract(t, request, a)
	return a
}

// TestBodyThatIsSaidToCome has a body of unknown length that turns out to be empty.
func TestBodyThatIsSaidToCome(t *testing.T) {
	s := newSite(t)
	request := httptest.NewRequestWithContext(t.Context(), "POST", "/api/customers", io.MultiReader())
	if request.ContentLength != -1 {
		t.Fatalf("the length is %d", request.ContentLength)
	}
	recorder := httptest.NewRecorder()
	s.handler.ServeHTTP(recorder, request)
	if recorder.Code != http.StatusCreated {
		t.Errorf("answered %d %s", recorder.Code, recorder.Body)
	}
}

func TestWithoutDatabase(t *testing.T) {
	s := newSite(t)
	product := s.product(t, 1)
	auth := "Authorization: Bearer " + s.token(t, s.customer(t))
	s.takeAway(t)
	for path, wants := range map[string]string{
		"GET /api/products": "Repeat",
		"GET /api/orders":   "Repeat",
		"POST /api/orders":  "same Idempotency-Key",
		"POST /api/orders/" + uuid.NewString() + "/pay": "paid once",
	} {
		method, path, _ := strings.Cut(path, " ")
		body := ""
		if path == "/api/orders" && method == "POST" {
			body = orderBody(product, 1)
		}
		started := time.Now()
		a := s.send(t, method, path, body, auth)
		if p := a.problem(t); a.status != http.StatusServiceUnavailable || !strings.Contains(p.Detail, wants) || a.header.Get("Retry-After") == "" {
			t.Errorf("%s %s: %d %s", method, path, a.status, a.body)
		}
		if took := time.Since(started); took > 5*time.Second {
			t.Errorf("%s %s took %v", method, path, took)
		}
	}
}

// declaredCodes reads the codes from the source that declares them.
func declaredCodes(t *testing.T) (codes []order.Code) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "errors.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if of, ok := spec.Type.(*ast.Ident); ok && of.Name == "Code" {
			code, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			codes = append(codes, order.Code(code))
		}
		return false
	})
	if len(codes) < 10 {
		t.Fatalf("found only the codes %q", codes)
	}
	return codes
}

func TestEveryCodeIsAProblem(t *testing.T) {
	for _, code := range declaredCodes(t) {
		recorder := httptest.NewRecorder()
		c, _ := gin.CreateTestContext(recorder)
		c.Request = httptest.NewRequest("GET", "/", nil)
		order.Fail(c, order.Errorf(code, "why"))
		if recorder.Code < 400 {
			t.Errorf("%s is answered with %d", code, recorder.Code)
		}
	}
}
