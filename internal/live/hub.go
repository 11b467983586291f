package live

import (
	"cmp"
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

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/rest"
)

const (
	// maxPerTopic is the largest number of subscribers of a topic in one process. A browser opens at most six connections to
	// an HTTP/1.1 address for all its tabs. With two processes behind a load balancer, streams take four of them, and two
	// are left for requests. More streams would leave none, and fewer would end the streams of open tabs.
	maxPerTopic = 2
	// maxPerProcess is the largest number of subscribers in one process. More would take more memory, and more processor
	// time for each broadcast. Fewer would make more pages poll.
	maxPerProcess = 10_000
	// maxBehind is the largest number of messages that wait for a subscriber, beside those that its connection buffers. More
	// would take more memory for clients that read too slowly. Fewer would end streams that are slow for a moment.
	maxBehind = 32
	// quietTimeout is the time without a message after which a hub with subscribers pings Redis, and the time that Redis has
	// to answer. With a longer one, pages learn later that the hub is not connected. A shorter one costs more pings.
	quietTimeout = 3 * time.Second
)

// Hub passes the notifications of all processes to the subscribers of this process. It tells the subscribers when it
// loses and regains its connection to Redis, because notifications between the two are lost.
type Hub struct {
	cfg     Config
	rdb     redis.UniversalClient
	log     *slog.Logger
	open    prometheus.Gauge   // open streams
	dropped prometheus.Counter // streams that the hub ended because their clients read too slowly

	mu          sync.Mutex
	subscribers map[string]map[*subscriber]struct{} // by topic
	count       int                                 // subscribers now
	joined      int64                               // subscribers so far
	live        bool                                // the hub is connected to Redis
	ended       bool                                // Run has ended: there are no more subscribers
}

// subscriber is one open page. The hub closes messages when the subscription ends.
type subscriber struct {
	topic     string
	number    int64 // a later subscriber has a higher number
	messages  chan message
	broadcast chan struct{} // buffered by one: broadcasts coalesce
}

// message is sent to one subscriber.
type message struct {
	typ messageType
	ids []string // the ids that have changed, if the type is changed
}

// messageType says what a message tells its subscriber.
type messageType int

const (
	hubLive    messageType = iota // the hub is connected to Redis
	hubNotLive                    // the hub has lost its connection
	changed                       // ids of the topic have changed
	replaced                      // a newer subscriber of the topic takes the place of this one
)

// liveMessage returns the message that the hub is connected to Redis, or is not.
func liveMessage(live bool) message {
	if live {
		return message{typ: hubLive}
	}
	return message{typ: hubNotLive}
}

// NewHub returns a hub that receives notifications while [Hub.Run] runs. rdb is nil in a service without Redis.
func NewHub(rdb redis.UniversalClient, cfg Config, log *slog.Logger, reg prometheus.Registerer) *Hub {
	f := promauto.With(reg)
	return &Hub{
		cfg: cfg, rdb: rdb, log: log, subscribers: map[string]map[*subscriber]struct{}{},
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

// Run receives notifications until ctx ends, and then ends every subscription.
func (h *Hub) Run(ctx context.Context) error {
	defer h.removeAll()
	if h.rdb == nil { // the notifications of other processes are lost, so the hub is never live, and pages poll
		<-ctx.Done()
		return nil
	}
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
func (h *Hub) listen(ctx context.Context) error {
	sub := h.rdb.Subscribe(ctx, h.cfg.Channel)
	defer sub.Close()
	unregister := context.AfterFunc(ctx, func() { sub.Close() }) // ends a blocked read, because it ignores ctx
	defer unregister()
	pinged, followsSentinels := false, delay.FollowsSentinels(h.rdb)
	for {
		received, err := sub.ReceiveTimeout(ctx, quietTimeout)
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() && !pinged && h.isLive() {
			if !h.hasSubscribers() && !followsSentinels {
				continue // the state of the connection matters only to subscribers
			}
			pinged = true
			if err := sub.Ping(ctx); err != nil {
				return fmt.Errorf("ping Redis: %w", err)
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("listen to %s: %w", h.cfg.Channel, err)
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

// isLive reports whether the hub is connected to Redis.
func (h *Hub) isLive() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.live
}

func (h *Hub) hasSubscribers() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count > 0
}

// setLive records whether the hub is connected to Redis, and reports whether that has changed. It tells each change to
// every subscriber, so that the page requests the state that it may have missed.
func (h *Hub) setLive(live bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.live == live {
		return false
	}
	h.live = live
	for _, subscribers := range h.subscribers {
		for s := range subscribers {
			h.send(s, liveMessage(live))
		}
	}
	return true
}

// deliver receives a message of the notifier of the same process.
func (h *Hub) deliver(_ context.Context, message []byte) error {
	h.receive(string(message))
	return nil
}

// receive passes the notifications of one message to the subscribers of their topics. It also sends a broadcast to
// every subscriber.
func (h *Hub) receive(payload string) {
	var notifications []notification
	if err := json.Unmarshal([]byte(payload), &notifications); err != nil {
		h.log.Warn("the hub ignored a message: want a JSON array of notifications; another client publishes to its channel",
			"channel", h.cfg.Channel, "error", err)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	ids := map[string][]string{}
	for _, n := range notifications {
		if h.subscribers[n.Topic] != nil {
			ids[n.Topic] = append(ids[n.Topic], n.ID)
		}
	}
	for topic, subscribers := range h.subscribers {
		for s := range subscribers {
			if ids[topic] != nil {
				h.send(s, message{typ: changed, ids: ids[topic]})
			}
			select {
			case s.broadcast <- struct{}{}:
			default: // a broadcast is waiting already
			}
		}
	}
}

// send queues a message for a subscriber. If the queue is full, send ends the subscription: the page connects again,
// and requests everything. The caller holds mu.
func (h *Hub) send(s *subscriber, m message) {
	select {
	case s.messages <- m:
	default:
		h.dropped.Inc()
		h.remove(s)
	}
}

// subscribe adds a subscriber of a topic. The subscriber's first message is the state of the hub. If the topic has too
// many subscribers, the new one replaces the oldest. The oldest one's connection may be dead, and the server detects a
// dead connection only after minutes.
func (h *Hub) subscribe(topic string) (*subscriber, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.ended:
		return nil, rest.Unavailable.Errorf("The service is stopping. Connect again.")
	case h.count >= maxPerProcess:
		return nil, rest.Unavailable.Errorf("There are too many open event streams. Poll instead of streaming.")
	}
	if subscribers := h.subscribers[topic]; len(subscribers) >= maxPerTopic {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(subscribers)),
			func(a, b *subscriber) int { return cmp.Compare(a.number, b.number) })
		h.send(oldest, message{typ: replaced})
		h.remove(oldest)
	}
	h.joined++
	s := &subscriber{topic: topic, number: h.joined, messages: make(chan message, maxBehind), broadcast: make(chan struct{}, 1)}
	if h.subscribers[topic] == nil {
		h.subscribers[topic] = map[*subscriber]struct{}{}
	}
	h.subscribers[topic][s] = struct{}{}
	h.count++
	h.open.Inc()
	h.send(s, liveMessage(h.live))
	return s, nil
}

// unsubscribe ends a subscription. It may be called again.
func (h *Hub) unsubscribe(s *subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.remove(s)
}

// remove ends a subscription. It may be called again. The caller holds mu.
func (h *Hub) remove(s *subscriber) {
	if _, ok := h.subscribers[s.topic][s]; !ok {
		return
	}
	close(s.messages)
	delete(h.subscribers[s.topic], s)
	if len(h.subscribers[s.topic]) == 0 {
		delete(h.subscribers, s.topic)
	}
	h.count--
	h.open.Dec()
}

// removeAll ends every subscription, and rejects later ones.
func (h *Hub) removeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	for _, subscribers := range h.subscribers {
		for s := range subscribers {
			h.remove(s)
		}
	}
}
