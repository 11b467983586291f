package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestHealth asks as the health check of a container does: at the address that the process was given.
func TestHealth(t *testing.T) {
	setEnvironment(t, nil)
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.WriteHeader(status)
		io.WriteString(w, `{"status":"as said"}`)
	}))
	defer server.Close()
	address := server.Listener.Addr().String()
	_, port, _ := strings.Cut(address, ":")
	health := func(address string) (code int, said string) {
		var out strings.Builder
		code = exitCode(run(t.Context(), []string{"health", "--http-addr=" + address}, &out, &out), &out)
		return code, out.String()
	}
	for _, address := range []string{address, ":" + port, "0.0.0.0:" + port} {
		if code, said := health(address); code != 0 || said != `{"status":"as said"}`+"\n" {
			t.Errorf("at %s: exit code %d and %q, want 0 and the process's own words", address, code, said)
		}
	}
	status = http.StatusServiceUnavailable
	if code, said := health(address); code != 1 || !strings.Contains(said, `503: {"status":"as said"}`) {
		t.Errorf("unready: exit code %d and %q", code, said)
	}
	server.Close()
	if code, said := health(address); code != 1 || !strings.Contains(said, "refused") {
		t.Errorf("gone: exit code %d and %q", code, said)
	}
}
