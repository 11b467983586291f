package live

import (
	"bytes"
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
	heartbeat         = 10 * time.Second // between two events, by whose absence a page detects a dead connection
	writeTimeout      = 10 * time.Second // of one write to a client
	broadcastInterval = time.Second      // at least, between two broadcasts, after each of which every page requests its data
)

// Stream returns the handler that answers with server-sent events about the topic of the request, until the client
// closes the connection or reads too slowly, or [Hub.Run] ends. A HEAD request is answered at once.
func (h *Hub) Stream(topic func(*gin.Context) string) gin.HandlerFunc {
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
func (h *Hub) stream(c *gin.Context, s *subscriber) {
	c.Header("Content-Type", eventStream)
	c.Header("X-Accel-Buffering", "no") // tells nginx not to buffer the events
	w := eventWriter{c.Writer, http.NewResponseController(c.Writer)}
	// The delay is random, so that the pages of a stopped process do not all connect again at the same time.
	if w.write(fmt.Appendf(nil, "retry: %d\n\n", 1000+rand.N(2000))) != nil {
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
			events = event("heartbeat", empty)
		case <-next.C:
			broadcast = s.broadcast
			continue
		case <-broadcast:
			events = event(h.cfg.BroadcastEvent, empty)
			broadcast = nil
			next.Reset(broadcastInterval)
		case message, more := <-s.messages:
			if !more {
				return
			}
			events = message
		}
		if w.write(events) != nil {
			return
		}
	}
}

// The data of events, as JSON.
type (
	stateData struct {
		Live bool `json:"live"`
	}
	changedData struct {
		ID string `json:"id"`
	}
)

var empty = struct{}{}

// event returns one server-sent event. See https://html.spec.whatwg.org/multipage/server-sent-events.html.
func event(name string, data any) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "event: %s\ndata: ", name)
	if err := json.NewEncoder(&b).Encode(data); err != nil {
		panic(err) // the types above always encode
	}
	b.WriteByte('\n')
	return b.Bytes()
}

// eventWriter sends each write to the client at once, or fails after writeTimeout.
type eventWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

// write sets a deadline for each write, instead of the server's WriteTimeout, which is for a whole answer.
func (w eventWriter) write(events []byte) error {
	if err := w.control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	if _, err := w.Write(events); err != nil {
		return err
	}
	return w.control.Flush()
}
