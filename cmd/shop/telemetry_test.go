package main

import (
	"net/http/httptest"
	"strconv"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestUnknownMethodsShareOneSeries checks that a client cannot make a new series with each new method.
func TestUnknownMethodsShareOneSeries(t *testing.T) {
	a := newTestApp(t, "redis://127.0.0.1:1/0", 1)
	handler, err := a.handler(&serveOptions{})
	must(t, err)
	for i := range 10 {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), "BREW"+strconv.Itoa(i), "/healthz/", nil))
		if recorder.Code < 400 || recorder.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("got status %d with content type %s, want an error as application/problem+json",
				recorder.Code, recorder.Header().Get("Content-Type"))
		}
	}
	if n, err := testutil.GatherAndCount(a.registry, "shop_http_request_seconds"); err != nil || n != 1 {
		t.Errorf("got %d series and the error %v, want 1 series and no error", n, err)
	}
}
