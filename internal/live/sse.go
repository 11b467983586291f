package live

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"example.com/shop/internal/rest"
)

const eventStream = "text/event-stream"

const (
	heartbeat         = 10 * time.Second // between two heartbeats, without which a page takes its connection for dead
	writeTimeout      = 10 * time.Second // of one write to a client
	broadcastInterval = time.Second      // at least between two broadcasts, because every page then requests data
)

// serve returns the handler that answers with server-sent events about the topic of the request, until the client
// closes the connection or reads too slowly, or the hub stops. A HEAD request is answered at once.
func (h *hub) serve(topic func(*gin.Context) string) gin.HandlerFunc {
	return rest.Handle(func(c *gin.Context) error {
		if c.Request.Method == http.MethodHead {
			c.Header("Content-Type", eventStream)
			return nil
		}
		s, err := h.subscribe(topic(c))
		if err != nil {
			return err
		}
		defer h.unsubscribe(s)
		h.stream(c, s)
		return nil
	})
}

// stream writes a subscriber's events until the subscription or the request ends. It does not report a failed write,
// because streams usually end that way: the client has gone.
func (h *hub) stream(c *gin.Context, s *subscriber) {
	c.Header("Content-Type", eventStream)
	c.Header("X-Accel-Buffering", "no") // tells nginx not to buffer the events
	control := http.NewResponseController(c.Writer)
	write := func(events []byte) error {
		// The deadline is for one write, because the server's WriteTimeout would end the whole answer.
		if err := control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return err
		}
		if _, err := c.Writer.Write(events); err != nil {
			return err
		}
		return control.Flush()
	}
	// The delay is random, so that the pages of a stopped process do not all connect again at the same time.
	if write(fmt.Appendf(nil, "retry: %d\n\n", 1000+rand.N(2000))) != nil {
		return
	}

	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	next := time.NewTimer(broadcastInterval)
	defer next.Stop()
	var broadcast <-chan struct{} // nil until the interval has passed
	for {
		var events []byte
		select {
		case <-c.Request.Context().Done():
			return
		case <-beat.C:
			events = event("heartbeat", gin.H{})
		case <-next.C:
			broadcast = s.broadcast
			continue
		case <-broadcast:
			events = event(h.names.Broadcast, gin.H{})
			broadcast = nil
			next.Reset(broadcastInterval)
		case message, more := <-s.messages:
			if !more {
				return
			}
			events = message
		}
		if write(events) != nil {
			return
		}
	}
}

// event returns one server-sent event. See https://html.spec.whatwg.org/multipage/server-sent-events.html.
func event(name string, data gin.H) []byte {
	text, err := json.Marshal(data)
	if err != nil {
		panic(err) // texts and booleans always encode
	}
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, text)
}
