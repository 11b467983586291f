package order

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"
)

// StreamPath is the path whose answer does not end: limits on the time of a request are not for it.
const StreamPath = "/api/events"

const eventStream = "text/event-stream"

const (
	// heartbeat keeps proxies from closing a quiet stream, and tells its reader that it is not dead.
	heartbeat = 10 * time.Second
	// writeTimeout is for one write to a reader that takes nothing.
	writeTimeout = 10 * time.Second
	// stockRest is between two events about stock: they go to everyone, and everyone looks.
	stockRest = time.Second
)

// stream answers with server-sent events until the reader goes, is too slow, or the service stops. A HEAD request
// gets no events, and is answered at once.
func (a *api) stream(c *gin.Context) error {
	if c.Request.Method == http.MethodHead {
		c.Header("Content-Type", eventStream)
		return nil
	}
	s, err := a.feed.join(customer(c))
	if err != nil {
		return err
	}
	defer a.feed.leave(s)

	c.Header("Content-Type", eventStream)
	c.Header("X-Accel-Buffering", "no") // nginx would keep the events until it has a bufferful
	w := eventWriter{c.Writer, http.NewResponseController(c.Writer)}
	// Pages of a process that stops come back spread over time.
	if err := w.write(fmt.Appendf(nil, "retry: %d\n\n", 1000+rand.N(2000))); err != nil {
		return nil //nolint:nilerr // the reader is gone, which is how streams end
	}

	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	rested := time.NewTimer(stockRest)
	defer rested.Stop()
	var stock <-chan struct{} // nil while it rests
	for {
		var events []byte
		select {
		case <-c.Request.Context().Done():
			return nil
		case <-beat.C:
			events = event("heartbeat", nothing)
		case <-rested.C:
			stock = s.stock
			continue
		case <-stock:
			events = event("products", nothing)
			stock = nil
			rested.Reset(stockRest)
		case n, more := <-s.news:
			if !more {
				return nil
			}
			events = n.events()
		}
		if err := w.write(events); err != nil {
			return nil //nolint:nilerr // the reader is gone
		}
	}
}

// What events hold.
type (
	stateData struct {
		Live bool `json:"live"`
	}
	orderData struct {
		ID uuid.UUID `json:"id"`
	}
)

var nothing = struct{}{}

// events are the news as server-sent events.
func (n news) events() (all []byte) {
	switch n.kind {
	case feedLives, feedSleeps:
		return event("state", stateData{n.kind == feedLives})
	case replaced:
		return event("replaced", nothing)
	}
	for _, id := range n.orders {
		all = append(all, event("order", orderData{id})...)
	}
	return all
}

// event is one server-sent event. See https://html.spec.whatwg.org/multipage/server-sent-events.html.
func event(name string, data any) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "event: %s\ndata: ", name)
	if err := json.NewEncoder(&b).Encode(data); err != nil {
		panic(err) // none of ours holds what JSON cannot
	}
	b.WriteByte('\n')
	return b.Bytes()
}

// eventWriter writes what its reader gets at once, or fails in time.
type eventWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

// write puts its own limit in the place of the server's, which is for whole answers.
func (w eventWriter) write(events []byte) error {
	if err := w.control.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	if _, err := w.Write(events); err != nil {
		return err
	}
	return w.control.Flush()
}
