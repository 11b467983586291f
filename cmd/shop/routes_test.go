package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"example.com/shop/internal/demo"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
)

// TestHeadMatchesGet checks that each path that answers GET answers HEAD with the same status and content type, and
// without a body.
func TestHeadMatchesGet(t *testing.T) {
	o := validOptions()
	o.DatabaseURL, o.RedisURL = testenv.Postgres(t), "redis://127.0.0.1:1/0"
	payments := newTestPayments(t, &o)
	a := openAppWith(t, &o)
	payments.addTo(a.Process, demo.Add(a.Process, nil, nil))
	handler, err := a.Handler()
	testenv.Must(t, err)
	registered := map[string]bool{}
	var routes gin.RoutesInfo
	a.Routes(func(root, _ gin.IRouter) { routes = root.(*gin.Engine).Routes() })
	for _, r := range routes {
		registered[r.Method+" "+r.Path] = true
	}
	for _, r := range routes {
		if r.Method == http.MethodGet && !registered["HEAD "+r.Path] {
			t.Errorf("there is a route GET %s, but no route HEAD %[1]s", r.Path)
		}
	}

	server := httptest.NewServer(handler)
	defer server.Close()
	send := func(method, path string) (statusAndType, body string) {
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, http.NoBody)
		testenv.Must(t, err)
		req.Header.Set("Authorization", "Bearer "+o.Ops.OpsToken) // customers' routes answer 401
		resp, err := server.Client().Do(req)
		testenv.Must(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		testenv.Must(t, err)
		return resp.Status + " " + resp.Header.Get("Content-Type"), string(text)
	}
	for _, path := range []string{"/", "/ops", "/assets/shop.js", "/openapi.yaml", "/healthz", "/readyz", "/metrics", "/api/products", "/api/orders", "/api/events", "/ops/api/stats", "/ops/api/faults",
		"/api/payments", "/ops/api/payments", "/ops/api/provider-ledger",
		"/nothing"} {
		want, _ := send(http.MethodGet, path)
		got, body := send(http.MethodHead, path)
		if got != want || body != "" {
			t.Errorf("HEAD %s: got %s with the body %q, want %s as for GET, and no body", path, got, body, want)
		}
	}
}

// TestHalfClosedClient checks that a client gets its answer although it closes its half of the connection after the
// request.
func TestHalfClosedClient(t *testing.T) {
	o := validOptions()
	a := newTestApp(t, testenv.Redis(t), 1)
	handler, err := a.Handler()
	testenv.Must(t, err)
	server := httptest.NewServer(handler)
	defer server.Close()
	tokens, err := rest.NewTokens(tokenConfig(o.TokenKey))
	testenv.Must(t, err)
	token, err := tokens.Issue(a.orders.SignUp())
	testenv.Must(t, err)
	product := uuid.New()
	mustExec(t, a, `INSERT INTO products (id, name, price_cents, currency, supply, available) VALUES ($1, 'thing', 100, 'EUR', 100, 100)`, product)
	body := fmt.Sprintf(`{"items":[{"product_id":%q,"quantity":1}]}`, product)

	for range 20 { // net/http may notice the end of the client's half at any time during the request
		for _, test := range []struct {
			request, body string
			status        int
		}{
			{"GET /readyz", "", http.StatusOK},
			{"GET /api/orders", "", http.StatusOK},
			{"POST /api/orders", body, http.StatusCreated},
			{"POST /api/orders", "{}", http.StatusUnprocessableEntity},
		} {
			conn, err := net.Dial("tcp", server.Listener.Addr().String())
			testenv.Must(t, err)
			_, err = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
				test.request, token, len(test.body), test.body)
			testenv.Must(t, err)
			testenv.Must(t, conn.(*net.TCPConn).CloseWrite())
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			testenv.Must(t, err)
			text, err := io.ReadAll(resp.Body)
			testenv.Must(t, err)
			if resp.StatusCode != test.status {
				t.Errorf("%s: got status %d, want %d: %s", test.request, resp.StatusCode, test.status, text)
			}
			resp.Body.Close()
			conn.Close()
		}
	}
}

// TestUnreadyWithoutTables drops the schema, as during the restore of a backup. The service must be unready and answer
// 503 until all tables are back.
func TestUnreadyWithoutTables(t *testing.T) {
	a := newTestApp(t, testenv.Redis(t), 1)
	handler, err := a.Handler()
	testenv.Must(t, err)
	status := func(path string) int {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
		return recorder.Code
	}
	tables := []string{"customers", "products", "orders", "order_items", "order_events", "outbox", "reconcile_reports"}
	expectBoth := func(want int) {
		t.Helper()
		for _, path := range []string{"/readyz", "/api/products"} {
			if got := status(path); got != want {
				t.Errorf("GET %s: got status %d, want %d", path, got, want)
			}
		}
	}
	expectBoth(http.StatusOK)
	mustExec(t, a, `CREATE SCHEMA backup`)
	for _, table := range tables {
		mustExec(t, a, `ALTER TABLE `+table+` SET SCHEMA backup`)
	}
	expectBoth(http.StatusServiceUnavailable)
	mustExec(t, a, `DROP SCHEMA public CASCADE`)
	expectBoth(http.StatusServiceUnavailable)
	// A restore creates the tables, then loads them, then adds indexes and constraints.
	mustExec(t, a, `CREATE SCHEMA public`)
	mustExec(t, a, `CREATE TABLE public.orders (LIKE backup.orders)`)
	if got := status("/readyz"); got != http.StatusServiceUnavailable {
		t.Errorf("GET /readyz with only the table orders, without its constraints: got status %d, want 503", got)
	}
	mustExec(t, a, `DROP TABLE public.orders`)
	for _, table := range tables {
		mustExec(t, a, `ALTER TABLE backup.`+table+` SET SCHEMA public`)
	}
	expectBoth(http.StatusOK)
}

// TestTokens checks the names in customers' tokens and of their cookie. If one changes, every customer loses access to
// their orders.
func TestTokens(t *testing.T) {
	o := validOptions()
	handler, err := newTestApp(t, "redis://127.0.0.1:1/0", 1).Handler()
	testenv.Must(t, err)
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), "POST", "/api/customers", http.NoBody))
	cookie, err := http.ParseSetCookie(recorder.Header().Get("Set-Cookie"))
	testenv.Must(t, err)
	var claims jwt.RegisteredClaims
	_, err = jwt.ParseWithClaims(cookie.Value, &claims, func(*jwt.Token) (any, error) { return []byte(o.TokenKey), nil })
	testenv.Must(t, err)
	if cookie.Name != "shop_token" || cookie.Path != "/api" || claims.Issuer != "shop" || !slices.Equal(claims.Audience, []string{"shop-customers"}) {
		t.Errorf("got the cookie %s for %s with a token of %s for %v, want shop_token for /api, of shop for shop-customers",
			cookie.Name, cookie.Path, claims.Issuer, claims.Audience)
	}
}

// TestEventsOfOtherCustomers opens the event streams of two customers. Each receives the ids of its own orders only, and
// both receive the event products.
func TestEventsOfOtherCustomers(t *testing.T) {
	o := validOptions()
	a := newTestApp(t, testenv.Redis(t), 1)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(t, err)
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx, ln) }()
	defer func() {
		stop()
		testenv.Must(t, <-ended)
		http.DefaultClient.CloseIdleConnections()
	}()
	tokens, err := rest.NewTokens(tokenConfig(o.TokenKey))
	testenv.Must(t, err)
	alice, bob := a.orders.SignUp(), a.orders.SignUp()
	// open returns a function that reads events up to the expected one, and returns all of them.
	open := func(customer uuid.UUID) (readTo func(expected string) (all string)) {
		token, err := tokens.Issue(customer)
		testenv.Must(t, err)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+ln.Addr().String()+"/api/events", http.NoBody)
		testenv.Must(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		testenv.Must(t, err)
		t.Cleanup(func() { resp.Body.Close() })
		lines := bufio.NewReader(resp.Body)
		return func(expected string) (all string) {
			t.Helper()
			for !strings.HasSuffix(all, expected) {
				line, err := lines.ReadString('\n')
				all += line
				if err != nil {
					t.Fatalf("the stream ended after %q, want %q", all, expected)
				}
			}
			return all
		}
	}
	event := func(name string, id uuid.UUID) string { return fmt.Sprintf("event: %s\ndata: {\"id\":%q}\n", name, id) }
	ofAlice, ofBob := open(alice), open(bob)
	const isLive = "event: state\ndata: {\"live\":true}\n"
	ofAlice(isLive)
	ofBob(isLive)
	first, second := uuid.New(), uuid.New()
	a.orders.Notify(alice.String(), first.String())
	ofAlice(event("order", first))
	ofAlice("event: products\ndata: {}\n")
	a.orders.Notify(bob.String(), second.String())
	if all := ofBob(event("order", second)); strings.Contains(all, first.String()) {
		t.Errorf("bob received %q, which names an order of alice", all)
	}
}
