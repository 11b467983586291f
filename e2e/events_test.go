package e2e

import (
	"bufio"
	"net/http"
	"strings"
	"testing"

	"example.com/shop/internal/testenv"
)

// TestEventsOutliveTimeouts holds a stream of events for longer than the server gives to any other answer, and then
// stops the server: it ends the stream, and does not wait for its reader.
func TestEventsOutliveTimeouts(t *testing.T) {
	t.Parallel()
	p := newSite(t, testenv.Redis(t)).serve(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+"/api/events", http.NoBody)
	must(t, err)
	req.Header.Set("Authorization", "Bearer "+p.signUp().token)
	resp, err := http.DefaultClient.Do(req)
	must(t, err)
	defer resp.Body.Close()
	heartbeats := 0
	lines := bufio.NewScanner(resp.Body)
	for heartbeats < 2 && lines.Scan() { // 20 seconds: a timeout of 15 has passed
		if lines.Text() == "event: heartbeat" {
			heartbeats++
		}
	}
	if heartbeats < 2 {
		t.Fatalf("the stream ended after %d heartbeats: %v", heartbeats, lines.Err())
	}
	t.Logf("stopped in %v", p.interrupt())
	for lines.Scan() {
	}
	if err := lines.Err(); err != nil || strings.Contains(p.text(), "cut off") {
		t.Errorf("the stream was cut off: %v", err)
	}
}
