package e2e

import (
	"bufio"
	"net/http"
	"strings"
	"testing"

	"example.com/shop/internal/testenv"
)

// TestEventsOutliveTimeouts keeps a stream of events open for longer than the server's timeout for other responses.
// Then it stops the server. The server must end the stream, and not wait until the client closes it.
func TestEventsOutliveTimeouts(t *testing.T) {
	t.Parallel()
	p := newSite(t, testenv.Redis(t)).serve(t)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+"/api/events", http.NoBody)
	testenv.Must(t, err)
	req.Header.Set("Authorization", "Bearer "+p.signUp().token)
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
	t.Logf("stopped in %v", p.interrupt())
	for lines.Scan() {
	}
	if err := lines.Err(); err != nil || strings.Contains(p.text(), "requests were still under way") {
		t.Errorf("the server closed the connection and did not end the stream: %v", err)
	}
}
