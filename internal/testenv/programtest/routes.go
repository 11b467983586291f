package programtest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/app"
	"example.com/shop/internal/testenv"
)

// HeadMatchesGet checks that each path that answers GET answers HEAD with the same status and content type, and without
// a body. It sends the requests with the operators' token, so that customers' routes answer 401.
func HeadMatchesGet(t testing.TB, process *app.Process, opsToken string) {
	t.Helper()
	handler := process.Handler()
	registered := map[string]bool{}
	routes := routesOf(t, process)
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
		req.Header.Set("Authorization", "Bearer "+opsToken)
		resp, err := server.Client().Do(req)
		testenv.Must(t, err)
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		testenv.Must(t, err)
		return resp.Status + " " + resp.Header.Get("Content-Type"), string(text)
	}
	paths := []string{"/nothing", "/assets/shop.js"}
	for _, r := range routes {
		if r.Method == http.MethodGet && !strings.ContainsAny(r.Path, ":*") {
			paths = append(paths, r.Path)
		}
	}
	if len(paths) < 7 {
		t.Errorf("the paths are %q, want at least 7", paths)
	}
	for _, path := range paths {
		want, _ := send(http.MethodGet, path)
		got, body := send(http.MethodHead, path)
		if got != want || body != "" {
			t.Errorf("HEAD %s: got %s with the body %q, want %s as for GET, and no body", path, got, body, want)
		}
	}
}

// routesOf returns the routes of a process. It routes the parts of the process again, with one more part, which comes
// last and so sees the routes of the others.
func routesOf(t testing.TB, process *app.Process) (routes gin.RoutesInfo) {
	t.Helper()
	again := *process.Base
	again.Metrics = prometheus.NewRegistry()
	var parts app.Parts
	for _, part := range process.Parts {
		parts = append(parts, app.Part{Routes: part.Routes, Contract: part.Contract})
	}
	parts = append(parts, app.Part{Routes: func(root, _ gin.IRouter) { routes = root.(*gin.Engine).Routes() }})
	_, err := app.New(&again, nil, parts...)
	testenv.Must(t, err)
	return routes
}
