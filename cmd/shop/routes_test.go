package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
)

// TestHeadWhereGet: HEAD has the status and the type of GET's answer, and no body.
func TestHeadWhereGet(t *testing.T) {
	o := valid()
	handler, err := newTestApp(t, "redis://127.0.0.1:1/0", 1).handler(&o, nil)
	must(t, err)
	has := map[string]bool{}
	routes := handler.(*gin.Engine).Routes()
	for _, r := range routes {
		has[r.Method+" "+r.Path] = true
	}
	for _, r := range routes {
		if r.Method == http.MethodGet && !has["HEAD "+r.Path] {
			t.Errorf("GET %s has no HEAD", r.Path)
		}
	}

	server := httptest.NewServer(handler)
	defer server.Close()
	ask := func(method, path string) (head, body string) {
		req, err := http.NewRequestWithContext(t.Context(), method, server.URL+path, http.NoBody)
		must(t, err)
		req.Header.Set("Authorization", "Bearer "+o.OpsToken) // of operators; to customers' routes it is no token
		resp, err := server.Client().Do(req)
		must(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		must(t, err)
		return resp.Status + " " + resp.Header.Get("Content-Type"), string(text)
	}
	for _, path := range []string{"/", "/ops", "/assets/shop.js", "/openapi.yaml", "/healthz", "/readyz", "/metrics", "/api/products", "/api/orders", "/api/events", "/ops/api/stats", "/nothing"} {
		want, _ := ask(http.MethodGet, path)
		got, body := ask(http.MethodHead, path)
		if got != want || body != "" {
			t.Errorf("HEAD %s: %s with the body %q, want %s as GET has, and no body", path, got, body, want)
		}
	}
}

// TestHalfClosedClient has clients send a request and close their half of the connection: they are answered like any
// other.
func TestHalfClosedClient(t *testing.T) {
	o := valid()
	a := newTestApp(t, testenv.Redis(t), 1)
	handler, err := a.handler(&o, nil)
	must(t, err)
	server := httptest.NewServer(handler)
	defer server.Close()
	tokens, err := order.NewTokens([]byte(o.TokenKey))
	must(t, err)
	token, err := tokens.Issue(a.orders.SignUp())
	must(t, err)
	product := uuid.New()
	mustExec(t, a, `INSERT INTO products (id, name, price_cents, currency, supply, available) VALUES ($1, 'thing', 100, 'EUR', 100, 100)`, product)
	body := fmt.Sprintf(`{"items":[{"product_id":%q,"quantity":1}]}`, product)

	for range 20 { // net/http sees the end of the connection at some time while it serves the request
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
			must(t, err)
			_, err = fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: shop\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
				test.request, token, len(test.body), test.body)
			must(t, err)
			must(t, conn.(*net.TCPConn).CloseWrite())
			resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
			must(t, err)
			text, err := io.ReadAll(resp.Body)
			must(t, err)
			if resp.StatusCode != test.status {
				t.Errorf("%s: %d, want %d: %s", test.request, resp.StatusCode, test.status, text)
			}
			resp.Body.Close()
			conn.Close()
		}
	}
}

// TestUnreadyWithoutTables has the schema dropped, as while a backup is restored: the service is unready and answers
// 503, and goes on when the tables are there again.
func TestUnreadyWithoutTables(t *testing.T) {
	o := valid()
	a := newTestApp(t, testenv.Redis(t), 1)
	handler, err := a.handler(&o, nil)
	must(t, err)
	status := func(path string) int {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), "GET", path, nil))
		return recorder.Code
	}
	tables := []string{"customers", "products", "orders", "order_items", "order_events", "outbox", "reconcile_reports"}
	both := func(want int) {
		t.Helper()
		for _, path := range []string{"/readyz", "/api/products"} {
			if got := status(path); got != want {
				t.Errorf("GET %s: %d, want %d", path, got, want)
			}
		}
	}
	both(http.StatusOK)
	mustExec(t, a, `CREATE SCHEMA backup`)
	for _, table := range tables {
		mustExec(t, a, `ALTER TABLE `+table+` SET SCHEMA backup`)
	}
	both(http.StatusServiceUnavailable)
	mustExec(t, a, `DROP SCHEMA public CASCADE`)
	both(http.StatusServiceUnavailable)
	// A restore makes the tables, then loads them, then adds indexes and constraints.
	mustExec(t, a, `CREATE SCHEMA public`)
	mustExec(t, a, `CREATE TABLE public.orders (LIKE backup.orders)`)
	if got := status("/readyz"); got != http.StatusServiceUnavailable {
		t.Errorf("while the tables are loaded: %d", got)
	}
	mustExec(t, a, `DROP TABLE public.orders`)
	for _, table := range tables {
		mustExec(t, a, `ALTER TABLE backup.`+table+` SET SCHEMA public`)
	}
	both(http.StatusOK)
}

// TestMetricsAreShared: however often metrics are asked for, they are gathered at most once a second.
func TestMetricsAreShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gathered := 0
		g := &sharedGatherer{from: prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
			gathered++
			return nil, nil
		})}
		for _, step := range []struct {
			wait time.Duration
			want int
		}{{0, 1}, {0, 1}, {999 * time.Millisecond, 1}, {time.Millisecond, 2}, {0, 2}} {
			<-time.After(step.wait)
			if _, err := g.Gather(); err != nil || gathered != step.want {
				t.Errorf("after %v gathered %d times, %v; want %d", step.wait, gathered, err, step.want)
			}
		}
	})
}
