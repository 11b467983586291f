package loadtest

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"example.com/shop/internal/faulttest"
)

// TestOpenLoopCountsWait checks that the latency of an arrival includes the time that it waits for a connection, and
// that arrivals without a connection until the load ends are counted.
func TestOpenLoopCountsWait(t *testing.T) {
	t.Parallel()
	const response, interval = 50 * time.Millisecond, 10 * time.Millisecond
	addr := serveLoad(t, func(w http.ResponseWriter, r *http.Request) {
		faulttest.Sleep(r.Context(), response)
		w.WriteHeader(http.StatusCreated)
	})
	var arrivals []time.Duration
	for i := range 100 {
		arrivals = append(arrivals, time.Duration(i)*interval)
	}
	r := OpenLoop(t, addr, 1, arrivals, 500*time.Millisecond, emptyPost)
	took := r.Latencies(Is(http.StatusCreated))
	if len(took) == 0 || len(took)+r.Unsent != len(arrivals) {
		t.Fatalf("%d responses and %d arrivals that were not sent, want %d in total",
			len(took), r.Unsent, len(arrivals))
	}
	for i, latency := range took { // one connection: the responses are in order
		if least := time.Duration(i+1)*response - arrivals[i]; latency < least {
			t.Errorf("the latency of arrival %d is %v, want at least %v", i, latency, least)
		}
	}
}

// TestClosedLoopStatuses checks that a load counts each status, reads bodies to their end, and connects again after the
// service has closed a connection with or without a response.
func TestClosedLoopStatuses(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	addr := serveLoad(t, func(w http.ResponseWriter, _ *http.Request) {
		switch requests.Add(1) % 4 {
		case 0:
			w.WriteHeader(http.StatusCreated)
		case 1:
			body := bytes.Repeat([]byte("HTTP/1.1 500 \r\n\r\n"), 1000)
			w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			_, _ = w.Write(body)
		case 2:
			w.Header().Set("Connection", "close")
			w.WriteHeader(http.StatusServiceUnavailable)
		case 3:
			panic(http.ErrAbortHandler)
		}
	})
	r := ClosedLoop(t, addr, 1, time.Second, emptyPost)
	total := 0
	for _, status := range []int{http.StatusCreated, http.StatusOK, http.StatusServiceUnavailable, 0} {
		n := r.Count(Is(status))
		if n < len(r.Responses)/4 {
			t.Errorf("%d responses with status %d, want a quarter of %d", n, status, len(r.Responses))
		}
		total += n
	}
	if total != len(r.Responses) || total != int(requests.Load()) || total < 4 {
		t.Errorf("%d requests and %d responses, %d of them with an expected status",
			requests.Load(), len(r.Responses), total)
	}
}

// serveLoad serves a handler, and returns its address.
func serveLoad(t *testing.T, handler http.HandlerFunc) (addr string) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.Start()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func emptyPost(buf []byte, _ int) []byte {
	return append(buf, "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n"...)
}
