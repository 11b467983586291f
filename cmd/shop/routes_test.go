package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"
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
