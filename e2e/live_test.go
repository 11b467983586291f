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

// TestEvents reads a stream while one order is paid and another one times out. On a deployed site it also checks that
// no proxy between the client and the service buffers the stream.
func TestEvents(t *testing.T) {
	p := anyShop(t)
	c := p.SignUp()
	stream := listen(c)
	stream.await(`{"live":true}`)
	paid := place(c)
	stream.await(`{"id":"` + paid.ID + `"}`)
	c.Post(http.StatusOK, "/api/orders/"+paid.ID+"/pay")
	stream.await(`{"id":"` + paid.ID + `"}`)
	left := place(c)
	stream.await(`{"id":"` + left.ID + `"}`)
	stream.await(`{"id":"` + left.ID + `"}`)
	if orderOf(c, left.ID).Status == "pending" { // the event was that of the reminder, which is best effort
		stream.await(`{"id":"` + left.ID + `"}`)
	}
	if o := orderOf(c, left.ID); o.Status != "cancelled" {
		t.Errorf("the last event came while the order was still %+v", o)
	}
}

// TestEventsOutliveTimeouts keeps a stream of events open for longer than the server's timeout for other responses.
// Then it stops the server. The server must end the stream, and not wait until the client closes it.
func TestEventsOutliveTimeouts(t *testing.T) {
	t.Parallel()
	p := orders.NewSite(t, testenv.Redis(t)).Serve(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL+"/api/events", http.NoBody)
	testenv.Must(t, err)
	req.Header.Set("Authorization", "Bearer "+p.SignUp().Token)
	resp, err := http.DefaultClient.Do(req)
	testenv.Must(t, err)
	defer resp.Body.Close()
	heartbeats := 0
	lines := bufio.NewScanner(resp.Body)
	for heartbeats < 2 && lines.Scan() { // two heartbeats take 20 s; the timeout for other responses is 15 s
		if lines.Text() == "event: heartbeat" {
			heartbeats++
		}
	}
	if heartbeats < 2 {
		t.Fatalf("the stream ended after %d heartbeats, want 2: %v", heartbeats, lines.Err())
	}
	t.Logf("stopped in %v", p.Interrupt())
	for lines.Scan() {
	}
	if err := lines.Err(); err != nil || strings.Contains(p.Text(), "requests were still under way") {
		t.Errorf("the server closed the connection and did not end the stream: %v", err)
	}
}

// eventStream is an open stream of events.
type eventStream struct {
	t    testing.TB
	data chan string
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
	stream := eventStream{c.T, make(chan string)}
	ended := make(chan struct{})
	c.T.Cleanup(func() {
		resp.Body.Close()
		<-ended
	})
	go func() {
		defer close(ended)
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				select {
				case stream.data <- data:
				case <-req.Context().Done():
					return
				}
			}
		}
	}()
	return stream
}

// await waits for an event with the data.
func (e eventStream) await(data string) {
	e.t.Helper()
	deadline := time.After(faulttest.Patience)
	for {
		select {
		case got := <-e.data:
			if got == data {
				return
			}
		case <-deadline:
			e.t.Fatalf("no event %s after %v", data, faulttest.Patience)
		}
	}
}
