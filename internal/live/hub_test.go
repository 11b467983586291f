package live

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"example.com/shop/internal/background"
	"example.com/shop/internal/testenv"
)

var noLog = slog.New(slog.DiscardHandler)

var names = Names{Channel: "test:feed", Row: "row", Broadcast: "any"}

// process is a notifier and a hub, behind a server with short timeouts.
type process struct {
	notifier *background.Sender[notification]

	url  string
	stop func() // stops the notifier and the hub, as a shutdown does
}

// newProcess starts a process. Processes with the same Redis exchange notifications.
func newProcess(t *testing.T, redisURL string) *process {
	t.Helper()
	rdb := testenv.RedisClient(t, redisURL)
	t.Cleanup(func() { rdb.Close() })
	metrics := prometheus.NewRegistry()
	hub := newHub(rdb, names, noLog, metrics)
	notifier := newNotifier(hub, noLog, metrics)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- notifier.Run(ctx) }()
	go func() { ended <- hub.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, <-ended); err != nil {
			t.Error(err)
		}
	})

	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.GET("/:topic", hub.serve(func(c *gin.Context) string { return c.Param("topic") }))
	server := httptest.NewUnstartedServer(r)
	// These timeouts must not end a stream. The tests keep streams open for longer.
	server.Config.ReadTimeout, server.Config.WriteTimeout = 50*time.Millisecond, 300*time.Millisecond
	server.Config.ReadHeaderTimeout = time.Minute // otherwise ReadTimeout would limit the header, too
	server.Start()
	t.Cleanup(server.Close)
	return &process{notifier: notifier, url: server.URL, stop: cancel}
}

// notify notifies the subscribers of a topic that an id has changed.
func (p *process) notify(topic, id string) { p.notifier.Add(notification{topic, id}) }

// listen subscribes to a topic. It returns a channel of the events ("name data"), which is closed when the stream ends.
func (p *process) listen(t *testing.T, topic string) <-chan string {
	t.Helper()
	status, body := p.request(t, topic)
	if status != http.StatusOK {
		t.Fatalf("subscription to %s is answered with %d, want 200", topic, status)
	}
	events := make(chan string, 1000)
	go func() {
		defer close(events)
		name := ""
		for lines := bufio.NewScanner(body); lines.Scan(); {
			field, value, _ := strings.Cut(lines.Text(), ": ")
			switch field {
			case "event":
				name = value
			case "data":
				events <- name + " " + value
			}
		}
	}()
	return events
}

// request opens a stream of a topic, and returns the status and body of the answer.
func (p *process) request(t *testing.T, topic string) (status int, body io.ReadCloser) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+"/"+topic, http.NoBody)
	testenv.Must(t, err)
	resp, err := (&http.Client{Transport: &http.Transport{}}).Do(req)
	testenv.Must(t, err)
	t.Cleanup(func() { resp.Body.Close() })
	if got := resp.Header.Get("Content-Type"); resp.StatusCode == http.StatusOK && got != "text/event-stream" {
		t.Errorf("content type of the stream is %q, want text/event-stream", got)
	}
	return resp.StatusCode, resp.Body
}

// next returns the events up to the expected one, or fails the test after 30 s.
func next(t *testing.T, events <-chan string, expected string) (all []string) {
	t.Helper()
	deadline := time.NewTimer(30 * time.Second)
	defer deadline.Stop()
	for {
		select {
		case e, open := <-events:
			all = append(all, e)
			if !open {
				t.Fatalf("the stream ended after %q, want event %q", all, expected)
			}
			if e == expected {
				return all
			}
		case <-deadline.C:
			t.Fatalf("received %q in 30 s, want event %q", all, expected)
		}
	}
}

// Events as listen returns them.
const (
	hubIsLive     = `state {"live":true}`
	hubIsNotLive  = `state {"live":false}`
	replacedEvent = `replaced {}`
	broadcast     = `any {}`
)

func changedEvent(id string) string { return fmt.Sprintf(`row {"id":%q}`, id) }

// TestNotifications notifies in one process and subscribes in another. A subscriber receives the notifications of its
// own topic only. Every subscriber receives broadcasts.
func TestNotifications(t *testing.T) {
	url := testenv.Redis(t)
	publishing, listening := newProcess(t, url), newProcess(t, url)
	alice, bob := listening.listen(t, "alice"), listening.listen(t, "bob")
	next(t, alice, hubIsLive)
	next(t, bob, hubIsLive)
	for _, id := range []string{"1", "2", "3"} {
		publishing.notify("alice", id)
		next(t, alice, changedEvent(id))
	}
	next(t, bob, broadcast)
	publishing.notify("bob", "4")
	for _, e := range next(t, bob, changedEvent("4")) {
		if strings.HasPrefix(e, "row") && e != changedEvent("4") {
			t.Errorf("the subscriber of bob received %s, a notification of alice", e)
		}
	}
}

// TestHubWithoutRedis kills Redis while a stream is open, and starts it again. The stream stays open. It reports that
// the hub is not live, and then that it is live, and delivers notifications again.
func TestHubWithoutRedis(t *testing.T) {
	redis := testenv.RedisServer(t)
	p := newProcess(t, redis.URL())
	events := p.listen(t, "alice")
	next(t, events, hubIsLive)
	redis.Kill()
	next(t, events, hubIsNotLive)
	p.notify("alice", "lost")
	testenv.Must(t, redis.Restart(t.Context()))
	next(t, events, hubIsLive)
	p.notify("alice", "1")
	next(t, events, changedEvent("1"))
}

// TestQuietHub counts the pings of a hub that receives no notifications for a minute of a simulated clock.
func TestQuietHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		defer server.Close()
		rdb := redis.NewClient(&redis.Options{
			Dialer:                   func(context.Context, string, string) (net.Conn, error) { return server.Dial() },
			DisableIdentity:          true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		})
		defer rdb.Close()
		hub := newHub(rdb, names, noLog, prometheus.NewRegistry())
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- hub.run(ctx) }()
		<-time.After(time.Second)
		before := server.CommandCount()
		<-time.After(time.Minute)
		if n := server.CommandCount() - before; n != 20 || !hub.live {
			t.Errorf("the hub sent %d commands in a minute, and is live: %v; want 20, and true", n, hub.live)
		}
		cancel()
		testenv.Must(t, <-ended)
	})
}

// TestStreamsEndAtShutdown stops a process with an open stream. The stream ends, and the process rejects new ones.
func TestStreamsEndAtShutdown(t *testing.T) {
	p := newProcess(t, testenv.Redis(t))
	events := p.listen(t, "alice")
	next(t, events, hubIsLive)
	p.stop()
	for range events { // until the stream ends
	}
	if status, _ := p.request(t, "alice"); status != http.StatusServiceUnavailable {
		t.Errorf("after the shutdown a new stream is answered with %d, want 503", status)
	}
}

// TestOldestStreamIsReplaced opens one stream more of a topic than the hub allows. The oldest ends, and no other.
func TestOldestStreamIsReplaced(t *testing.T) {
	p := newProcess(t, testenv.Redis(t))
	other := p.listen(t, "bob")
	next(t, other, hubIsLive)
	first, second := p.listen(t, "alice"), p.listen(t, "alice")
	p.listen(t, "alice")
	next(t, first, replacedEvent)
	if _, open := <-first; open {
		t.Error("the oldest of three streams is still open after the event replaced")
	}
	events := next(t, second, hubIsLive) // before this event the hub may not receive notifications
	p.notify("alice", "1")
	for _, e := range append(events, next(t, second, changedEvent("1"))...) {
		if strings.HasPrefix(e, "replaced") {
			t.Error("the hub replaced the second stream too, want only the oldest")
		}
	}
	next(t, other, broadcast)
}

// TestHubDropsSlowSubscribers has one subscriber that never reads and one that does. The hub ends only the subscription
// of the first.
func TestHubDropsSlowSubscribers(t *testing.T) {
	h := newHub(nil, names, noLog, prometheus.NewRegistry())
	slow, err := h.subscribe("slow")
	testenv.Must(t, err)
	quick, err := h.subscribe("quick")
	testenv.Must(t, err)
	for range 1000 {
		h.receive(`[{"topic":"slow","id":"1"},{"topic":"quick","id":"2"}]`)
		<-quick.messages
	}
	n := 0
	for range slow.messages { // ends because the hub closes the channel of a dropped subscriber
		n++
	}
	if n == 0 || n > 100 {
		t.Errorf("the hub queued %d messages for a subscriber that never reads, want 1 to 100", n)
	}
	h.unsubscribe(slow) // a second time, as its handler does
	h.unsubscribe(quick)
	if _, err := h.subscribe("another"); err != nil {
		t.Errorf("subscribe after all unsubscribed: %v", err)
	}
}
