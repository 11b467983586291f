package rest_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/rest"
)

// TestRequireEmptyBody sends bodies of known and of unknown length. A body of unknown length is chunked, and may be
// empty.
func TestRequireEmptyBody(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.POST("/", rest.Handle(rest.RequireEmptyBody))
	for name, test := range map[string]struct {
		body   io.Reader
		length int64
		status int
	}{
		"no body":                      {http.NoBody, 0, http.StatusOK},
		"no body, unknown length":      {io.MultiReader(), -1, http.StatusOK},
		"empty object":                 {strings.NewReader("{}"), 2, http.StatusOK},
		"empty object, unknown length": {io.MultiReader(strings.NewReader("{}")), -1, http.StatusOK},
		"object with a field":          {strings.NewReader(`{"a":1}`), 7, http.StatusUnprocessableEntity},
		"not JSON":                     {strings.NewReader("a"), 1, http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			request := httptest.NewRequestWithContext(t.Context(), "POST", "/", test.body)
			request.Header.Set("Content-Type", "application/json")
			if request.ContentLength != test.length {
				t.Fatalf("the length of the body is %d, want %d", request.ContentLength, test.length)
			}
			recorder := httptest.NewRecorder()
			r.ServeHTTP(recorder, request)
			if recorder.Code != test.status {
				t.Errorf("the answer is %d %s, want %d", recorder.Code, recorder.Body, test.status)
			}
		})
	}
}
