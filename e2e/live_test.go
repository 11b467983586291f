package e2e

import (
	"bufio"
	"context"
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
	p := orders.AnySite(t)
	c := p.SignUp()
	ctx, cancel := context.WithTimeout(t.Context(), faulttest.Patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Base+"/api/events", http.NoBody)
	testenv.Must(t, err)
	req.Header.Set("Authorization", "Bearer "+c.Token)
	opened := time.Now()
	resp, err := http.DefaultClient.Do(req)
	testenv.Must(t, err)
	defer resp.Body.Close()
	stream := bufio.NewScanner(resp.Body)
	await := func(line string) {
		t.Helper()
		for stream.Scan() {
			if stream.Text() == line {
				return
			}
		}
		t.Fatalf("the stream of status %d ended before the line %s: %v", resp.StatusCode, line, stream.Err())
	}
	await(`data: {"live":true}`)
	paid := place(c)
	await(`data: {"id":"` + paid.ID + `"}`)
	c.Post(http.StatusOK, "/api/orders/"+paid.ID+"/pay")
	await(`data: {"id":"` + paid.ID + `"}`)
	left := place(c)
	await(`data: {"id":"` + left.ID + `"}`)
	await(`data: {"id":"` + left.ID + `"}`)
	if orderOf(c, left.ID).Status == "pending" { // the event was that of the reminder, which is best effort
		await(`data: {"id":"` + left.ID + `"}`)
	}
	if o := orderOf(c, left.ID); o.Status != "cancelled" {
		t.Errorf("the last event came while the order was still %+v", o)
	}
	for time.Since(opened) < 18*time.Second { // the timeout for other responses is 15 s
		await("event: heartbeat") // every 10 s
	}
	if faulttest.Deployed() {
		return
	}
	t.Logf("stopped in %v", p.Interrupt())
	for stream.Scan() { // until the stream ends
	}
	if err := stream.Err(); err != nil || strings.Contains(p.Text(), "requests were still under way") {
		t.Errorf("the server closed the connection and did not end the stream: %v", err)
	}
}
