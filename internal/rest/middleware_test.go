package rest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// newHandler returns a handler with the middleware and a few routes, and its log.
func newHandler() (http.Handler, *bytes.Buffer) {
	text := &bytes.Buffer{}
	r := parttest.NewRouter(slog.New(slog.NewJSONHandler(text, nil)))
	r.GET("/", func(c *gin.Context) { c.Status(http.StatusOK) })
	r.GET("/panic", func(*gin.Context) { panic("text of the panic") })
	return r, text
}

// TestRequestID checks that the middleware keeps a valid request id of the client, and replaces any other.
func TestRequestID(t *testing.T) {
	h, _ := newHandler()
	for id, valid := range map[string]bool{
		"a-valid_id.1": true, "": false, strings.Repeat("x", 65): false, "in two words": false, "a\"b": false,
	} {
		answer := parttest.Send(t, h, "GET", "/", "", "X-Request-ID: "+id)
		if got := answer.Header().Get("X-Request-Id"); (got == id) != valid || got == "" {
			t.Errorf("client sends X-Request-ID %q: the answer has %q, want the same: %v", id, got, valid)
		}
	}
}

// TestSameOrigin sends requests of a browser through a proxy that sets a Host of its own, as of a page of the site, and
// as of another one. Over HTTP a browser sends no Sec-Fetch-Site.
func TestSameOrigin(t *testing.T) {
	for name, test := range map[string]struct {
		publicURL, origin, host string
		rejected                bool
	}{
		"no browser":                   {"", "", "backend:8080", false},
		"the site":                     {"", "http://shop.example", "shop.example", false},
		"another site":                 {"", "http://evil.example", "shop.example", true},
		"a proxy changes the Host":     {"", "http://shop.example", "backend:8080", true},
		"the public URL":               {"http://shop.example", "http://shop.example", "backend:8080", false},
		"another site, the public URL": {"http://shop.example", "http://evil.example", "backend:8080", true},
	} {
		t.Run(name, func(t *testing.T) {
			check, err := rest.SameOrigin(test.publicURL)
			testenv.Must(t, err)
			r := gin.New()
			r.POST("/", check, func(c *gin.Context) { c.Status(http.StatusOK) })
			request := parttest.NewRequest(t, "POST", "/", "")
			request.Host = test.host
			if test.origin != "" {
				request.Header.Set("Origin", test.origin)
			}
			a := httptest.NewRecorder()
			r.ServeHTTP(a, request)
			names := strings.Contains(a.Body.String(), test.origin) && strings.Contains(a.Body.String(), test.host)
			if (a.Code == http.StatusForbidden) != test.rejected || test.rejected && !names {
				t.Errorf("the answer is %d %s, want it to be rejected: %v, with both names", a.Code, a.Body, test.rejected)
			}
		})
	}
	if _, err := rest.SameOrigin("ftp://shop.example"); err == nil {
		t.Error("a public URL that is not one of HTTP is accepted")
	}
}

// TestRecover checks that a panic is answered with a problem that discloses nothing, and is logged with its stack.
func TestRecover(t *testing.T) {
	h, log := newHandler()
	a := parttest.Send(t, h, "GET", "/panic", "", "X-Request-ID: find-me")
	var p rest.Problem
	testenv.Must(t, json.Unmarshal(a.Body.Bytes(), &p))
	if a.Code != 500 || p.Type != "/problems/internal" || p.RequestID != "find-me" ||
		strings.Contains(p.Detail, "text of the panic") {
		t.Errorf("the answer is %d %s, want 500, the request id and no text of the panic", a.Code, a.Body)
	}
	for _, part := range []string{
		"text of the panic", "middleware_test.go", `"request_id":"find-me","panic"`, `"request_id":"find-me","method"`,
	} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("the log lacks %q: %s", part, log)
		}
	}
}

// TestDeadline has a client go away. Its request goes on, until the time to answer is over.
func TestDeadline(t *testing.T) {
	r := gin.New()
	r.GET("/", rest.Deadline(time.Hour, func(string) bool { return false }), func(c *gin.Context) {
		if _, ends := c.Request.Context().Deadline(); !ends || c.Request.Context().Err() != nil {
			t.Errorf("the context has a deadline: %v, and its error is %v; want one, and no error", ends,
				c.Request.Context().Err())
		}
	})
	gone, leave := context.WithCancel(t.Context())
	leave()
	r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(gone, "GET", "/", http.NoBody))
}

// TestLogClipsPathsAndMethods sends a path and a method of thousands of bytes: the log contains only their start.
func TestLogClipsPathsAndMethods(t *testing.T) {
	h, log := newHandler()
	parttest.Send(t, h, "GET", "/"+strings.Repeat("é", 4000), "")
	parttest.Send(t, h, strings.Repeat("X", 4000), "/", "")
	if text := log.String(); len(text) > 2000 || !strings.Contains(text, `é…"`) {
		t.Errorf("the log has %d bytes, want at most 2000 and the clipped path: %.400s", len(text), text)
	}
}
