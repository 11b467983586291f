package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestHealth runs `shop health` with the address that the process listens on, as the health check of a container does.
func TestHealth(t *testing.T) {
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			t.Errorf("got a request for %s, want /readyz", r.URL.Path)
		}
		w.WriteHeader(status)
		io.WriteString(w, `{"status":"some"}`)
	}))
	defer server.Close()
	address := server.Listener.Addr().String()
	_, port, _ := strings.Cut(address, ":")
	health := func(address string) (code int, output string) {
		var out strings.Builder
		code = runCommand(t.Context(), []string{"health", "--http-addr=" + address}, &out)
		return code, out.String()
	}
	for _, address := range []string{address, ":" + port, "0.0.0.0:" + port} {
		if code, output := health(address); code != 0 || output != `{"status":"some"}`+"\n" {
			t.Errorf("at %s: got exit code %d and the output %q, want 0 and the body of the answer", address, code,
				output)
		}
	}
	status = http.StatusServiceUnavailable
	if code, output := health(address); code != 1 || !strings.Contains(output, `503: {"status":"some"}`) {
		t.Errorf("unready: got exit code %d and the output %q, want 1 and the status and the body of the answer", code,
			output)
	}
	server.Close()
	if code, output := health(address); code != 1 || !strings.Contains(output, "refused") {
		t.Errorf("stopped: got exit code %d and the output %q, want 1 and the connection refused", code, output)
	}
}
