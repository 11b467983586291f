package e2e

import (
	"bufio"
	"net/http"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
)

// TestEvents reads a stream while one order is paid and another one times out, and for longer than the server's
// timeout for other responses. On a deployed site it also checks that no proxy between the client and the service
// buffers the stream. Elsewhere it stops the server, which must end the stream, and not wait until the client closes
// it.
func TestEvents(t *testing.T) {
	testenv.Slow(t, "a stream stays open for 20 s")
	p := anyShop(t)
	c := p.SignUp()
	opened := time.Now()
	stream := listen(c)
	stream.await(`data: {"live":true}`)
	paid := place(c)
	stream.await(`data: {"id":"` + paid.ID + `"}`)
	c.Post(http.StatusOK, "/api/orders/"+paid.ID+"/pay")
	stream.await(`data: {"id":"` + paid.ID + `"}`)
	left := place(c)
	stream.await(`data: {"id":"` + left.ID + `"}`)
	stream.await(`data: {"id":"` + left.ID + `"}`)
	if orderOf(c, left.ID).Status == "pending" { // the event was that of the reminder, which is best effort
		stream.await(`data: {"id":"` + left.ID + `"}`)
	}
	if o := orderOf(c, left.ID); o.Status != "cancelled" {
		t.Errorf("the last event came while the order was still %+v", o)
	}
	for time.Since(opened) < 18*time.Second { // the timeout for other responses is 15 s
		stream.await("event: heartbeat") // every 10 s
	}
	if faulttest.Deployed() {
		return
	}
	t.Logf("stopped in %v", p.Interrupt())
	for range stream.lines {
	}
	if err := <-stream.ended; err != nil || strings.Contains(p.Text(), "requests were still under way") {
		t.Errorf("the server closed the connection and did not end the stream: %v", err)
	}
}

// eventStream is an open stream of events.
type eventStream struct {
	t     testing.TB
	lines chan string // closed when the stream has ended
	ended chan error  // why it ended; nil if the server ended it
}

// listen opens a stream of the customer's events. It stays open until the test ends.
func listen(c *faulttest.Client) eventStream {
	c.T.Helper()
	req, err := http.NewRequestWithContext(c.T.Context(), http.MethodGet, c.Base+"/api/events", http.NoBody)
	testenv.Must(c.T, err)
	req.Header.Set("Authorization", "Bearer "+c.Token)
	resp, err := http.DefaultClient.Do(req)
	testenv.Must(c.T, err)
	if resp.StatusCode != http.StatusOK {
		c.T.Fatalf("GET /api/events: %d, want 200", resp.StatusCode)
	}
	stream := eventStream{c.T, make(chan string), make(chan error, 1)}
	done := make(chan struct{})
	c.T.Cleanup(func() {
		resp.Body.Close()
		<-done
	})
	go func() {
		defer close(done)
		defer close(stream.lines)
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			select {
			case stream.lines <- lines.Text():
			case <-req.Context().Done():
				return
			}
		}
		stream.ended <- lines.Err()
	}()
	return stream
}

// await waits for a line of the stream.
func (e eventStream) await(line string) {
	e.t.Helper()
	deadline := time.After(faulttest.Patience)
	for {
		select {
		case got, open := <-e.lines:
			if !open {
				e.t.Fatalf("the stream ended before the line %s: %v", line, <-e.ended)
			}
			if got == line {
				return
			}
		case <-deadline:
			e.t.Fatalf("no line %s after %v", line, faulttest.Patience)
		}
	}
}
