package parttest

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
)

// NewRouter returns a router with the middleware of the service and without routes. Requests of the quiet paths are not
// logged.
func NewRouter(log *slog.Logger, quiet ...string) *gin.Engine {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.HandleMethodNotAllowed = true
	r.Use(rest.RequestID(), rest.Log(log, quiet...), rest.Recover(log))
	r.NoRoute(rest.NoRoute)
	r.NoMethod(rest.NoMethod)
	return r
}

// NewTokens returns the issuer of the customers' tokens.
func NewTokens(t testing.TB) *rest.Tokens {
	t.Helper()
	tokens, err := rest.NewTokens(rest.TokenConfig{
		Key: []byte("a key for tests, of 32 bytes...."), Issuer: "test", Audience: "customers",
		Cookie: "test_token", CookiePath: "/api", SignUp: "sign up",
	})
	testenv.Must(t, err)
	return tokens
}

// NewRequest returns a request with headers ("Name: value") for a handler. The content type of a body is JSON, unless a
// header sets another.
func NewRequest(t testing.TB, method, path, body string, headers ...string) *http.Request {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	for _, header := range headers {
		name, value, _ := strings.Cut(header, ": ")
		if name == "Content-Type" {
			request.Header.Del(name)
		}
		request.Header.Add(name, value)
	}
	return request
}

// Send passes the request that [NewRequest] makes to a handler, and returns the answer.
func Send(t testing.TB, h http.Handler, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	answer := httptest.NewRecorder()
	h.ServeHTTP(answer, NewRequest(t, method, path, body, headers...))
	return answer
}

// Send is [Send], and checks the answer against the contract.
func (c *Contract) Send(
	t testing.TB, h http.Handler, method, path, body string, headers ...string,
) *httptest.ResponseRecorder {
	t.Helper()
	request, answer := NewRequest(t, method, path, body, headers...), httptest.NewRecorder()
	h.ServeHTTP(answer, request)
	if err := c.Check(request, answer.Code, answer.Header(), answer.Body.Bytes()); err != nil {
		t.Error(err)
	}
	return answer
}

// ClassOf returns the class of a rejection. For nil it returns the zero class, and for any other error a class that
// differs from all declared classes.
func ClassOf(err error) rest.Class {
	if err == nil {
		return rest.Class{}
	}
	if rejection, ok := errors.AsType[*rest.Error](err); ok {
		return rejection.Class
	}
	return rest.Class{Code: "not a rejection: " + err.Error()}
}
