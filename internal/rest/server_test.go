package rest_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
)

// pipes is a listener for connections within the process, so that a test can simulate the clock.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if conn, ok := <-p; ok {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error {
	close(p)
	return nil
}

func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// TestServe sends a request, or a part of it, and reads until the server closes the connection. The handler works for a
// time. A server that stops finishes the requests that are under way.
func TestServe(t *testing.T) {
	const request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"
	const idle, never = 2 * time.Minute, time.Hour
	for name, test := range map[string]struct {
		sent        string
		work, stops time.Duration // the server stops after this time
		answered    bool
		closed      time.Duration
	}{
		"no further request":            {request, time.Second, never, true, time.Second + idle},
		"headers that do not end":       {request[:len(request)-2], time.Second, never, false, 5 * time.Second},
		"a slow answer":                 {request, 14 * time.Second, never, true, 14*time.Second + idle},
		"an answer that comes too late": {request, 16 * time.Second, never, false, 16 * time.Second},
		"under way":                     {request, 10 * time.Second, time.Second, true, 10 * time.Second},
		"under way for too long":        {request, 12 * time.Second, time.Second, false, 11 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithTimeout(t.Context(), test.stops)
				client, server := net.Pipe()
				ln, ended := make(pipes, 1), make(chan error, 1)
				ln <- server
				handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-time.After(test.work) })
				go func() { ended <- rest.Serve(ctx, ln, handler, slog.New(slog.DiscardHandler)) }()
				began := time.Now()
				_, err := io.WriteString(client, test.sent)
				testenv.Must(t, err)
				answer, _ := io.ReadAll(client)
				closed, answered := time.Since(began), strings.HasPrefix(string(answer), "HTTP/1.1 200 ")
				if closed != test.closed || answered != test.answered {
					t.Errorf("the connection is closed after %v with the answer %q; want after %v, with 200: %v",
						closed, answer, test.closed, test.answered)
				}
				stop()
				testenv.Must(t, <-ended)
				<-time.After(test.work) // until the handler returns
			})
		})
	}
}
