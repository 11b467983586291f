package live

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/rest"
)

const (
	// maxPerTopic is the largest number of subscribers of a topic in one process. A browser opens at most six
	// connections to an HTTP/1.1 address. If two processes stand behind a load balancer, the subscriptions take four of
	// them, and two are left for requests.
	maxPerTopic   = 2
	maxPerProcess = 10_000          // subscribers
	maxBehind     = 32              // messages that wait for a subscriber, beside those that its connection buffers
	quietTimeout  = 3 * time.Second // of silence before the hub pings Redis; also the limit for the answer
)

// hub passes the notifications of all processes to the subscribers of this process. It tells the subscribers when it
// loses and regains its connection to Redis, because notifications between the two are lost.
type hub struct {
	names   Names
	rdb     redis.UniversalClient
	log     *slog.Logger
	open    prometheus.Gauge   // open streams
	dropped prometheus.Counter // streams that the hub ended because their clients read too slowly

	mu          sync.Mutex
	subscribers map[string][]*subscriber // by topic, the oldest first
	count       int
	live        bool // the hub is connected to Redis
	ended       bool // run has ended: there are no more subscribers
}

// subscriber is one open page.
type subscriber struct {
	topic     string
	messages  chan []byte   // events as text; the hub closes it when the subscription ends
	broadcast chan struct{} // has room for one broadcast, which stands for all that wait
}

// newHub returns a hub that receives notifications while run runs.
func newHub(rdb redis.UniversalClient, names Names, log *slog.Logger, reg prometheus.Registerer) *hub {
	f := promauto.With(reg)
	names.Channel = delay.ChannelOf(rdb, names.Channel)
	return &hub{
		names: names, rdb: rdb, log: log, subscribers: map[string][]*subscriber{},
		open: f.NewGauge(prometheus.GaugeOpts{
			Name: "feed_streams",
			Help: "Open event streams.",
		}),
		dropped: f.NewCounter(prometheus.CounterOpts{
			Name: "feed_streams_dropped_total",
			Help: "Event streams that the hub ended because their clients read too slowly.",
		}),
	}
}

// run receives notifications until ctx ends, and then ends every subscription.
func (h *hub) run(ctx context.Context) error {
	defer h.removeAll()
	for first := true; ; first = false {
		err := h.listen(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if h.setLive(false) || first {
			h.log.Warn("the hub cannot listen to Redis; it keeps trying", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
}

// listen passes notifications on until Redis fails or does not answer a ping.
func (h *hub) listen(ctx context.Context) error {
	sub := h.rdb.Subscribe(ctx, h.names.Channel)
	defer sub.Close()
	unregister := context.AfterFunc(ctx, func() { sub.Close() }) // ends a blocked read, because it ignores ctx
	defer unregister()
	pinged := true // because Redis must confirm the subscription without a ping
	for {
		received, err := sub.ReceiveTimeout(ctx, quietTimeout)
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() && !pinged {
			pinged = true
			if err := sub.Ping(ctx); err != nil {
				return fmt.Errorf("ping Redis: %w", err)
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("listen to %s: %w", h.names.Channel, err)
		}
		pinged = false
		switch m := received.(type) {
		case *redis.Subscription:
			if h.setLive(true) {
				h.log.Info("the hub listens to Redis")
			}
		case *redis.Message:
			h.receive(m.Payload)
		}
	}
}

// setLive records whether the hub is connected to Redis, and reports whether that has changed. It tells each change to
// every subscriber, so that the page requests the state that it may have missed.
func (h *hub) setLive(live bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.live == live {
		return false
	}
	h.live = live
	for _, s := range h.all() {
		h.send(s, event("state", gin.H{"live": live}))
	}
	return true
}

// receive passes the notifications of one message to the subscribers of their topics. It also sends a broadcast to
// every subscriber.
func (h *hub) receive(payload string) {
	var notifications []notification
	if err := json.Unmarshal([]byte(payload), &notifications); err != nil {
		h.log.Warn("the hub ignored a message: want a JSON array of notifications; "+
			"another client publishes to its channel", "channel", h.names.Channel, "error", err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	events := map[string][]byte{}
	for _, n := range notifications {
		if h.subscribers[n.Topic] != nil {
			events[n.Topic] = append(events[n.Topic], event(h.names.Row, gin.H{"id": n.ID})...)
		}
	}
	for _, s := range h.all() {
		if changed := events[s.topic]; changed != nil {
			h.send(s, changed)
		}
		select {
		case s.broadcast <- struct{}{}:
		default: // a broadcast is waiting already
		}
	}
}

// all returns all subscribers. The caller holds mu.
func (h *hub) all() []*subscriber {
	return slices.Concat(slices.Collect(maps.Values(h.subscribers))...)
}

// send queues events for a subscriber. If the queue is full, send ends the subscription: the page connects again, and
// requests everything. The caller holds mu.
func (h *hub) send(s *subscriber, events []byte) {
	select {
	case s.messages <- events:
	default:
		h.dropped.Inc()
		h.remove(s)
	}
}

// subscribe adds a subscriber of a topic. The subscriber's first message is the state of the hub. If the topic has too
// many subscribers, the new one replaces the oldest, because the connection of the oldest may be dead, and the server
// detects a dead connection only after minutes.
func (h *hub) subscribe(topic string) (*subscriber, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.ended:
		return nil, rest.Unavailable.Errorf("The service is stopping. Connect again.")
	case h.count >= maxPerProcess:
		return nil, rest.Unavailable.Errorf("There are too many open event streams. Poll instead of streaming.")
	}
	if subscribers := h.subscribers[topic]; len(subscribers) >= maxPerTopic {
		oldest := subscribers[0]
		h.send(oldest, event("replaced", gin.H{}))
		h.remove(oldest)
	}
	s := &subscriber{topic: topic, messages: make(chan []byte, maxBehind), broadcast: make(chan struct{}, 1)}
	h.subscribers[topic] = append(h.subscribers[topic], s)
	h.count++
	h.open.Inc()
	h.send(s, event("state", gin.H{"live": h.live}))
	return s, nil
}

func (h *hub) unsubscribe(s *subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(s)
}

// remove ends a subscription. It may be called again. The caller holds mu.
func (h *hub) remove(s *subscriber) {
	at := slices.Index(h.subscribers[s.topic], s)
	if at < 0 {
		return
	}
	close(s.messages)
	h.subscribers[s.topic] = slices.Delete(h.subscribers[s.topic], at, at+1)
	if len(h.subscribers[s.topic]) == 0 {
		delete(h.subscribers, s.topic)
	}
	h.count--
	h.open.Dec()
}

func (h *hub) removeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	for _, s := range h.all() {
		h.remove(s)
	}
}
