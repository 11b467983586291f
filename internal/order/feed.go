package order

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

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/redis/go-redis/v9"
)

const (
	// streamsPerCustomer are those with one process. A browser has six connections to an address that speaks HTTP/1.1,
	// for all its tabs: behind a balancer with two of us there are two left for requests.
	streamsPerCustomer = 2
	streamsPerProcess  = 10_000
	// newsWaiting is what a stream's reader may be behind, on top of what the connection buffers.
	newsWaiting = 32
	// feedQuiet is after what silence Redis is asked whether it still lives; the answer gets as long again.
	feedQuiet = 3 * time.Second
)

// Feed hands the hints of every process's [Announcer] to the streams of this one. Hints are neither
// complete nor in order: whoever gets one looks at the orders again. While Redis is away there are none,
// and the streams are told so.
type Feed struct {
	rdb     redis.UniversalClient
	log     *slog.Logger
	open    prometheus.Gauge
	dropped prometheus.Counter

	mu      sync.Mutex
	streams map[uuid.UUID]map[*stream]struct{} // by customer
	count   int
	joined  int64
	live    bool
	ended   bool
}

// stream is one reader's. The feed closes news when the reader is too slow, and at the end.
type stream struct {
	customer uuid.UUID
	number   int64 // the older the lower
	news     chan news
	stock    chan struct{} // holds at most the one thing that there is to say: that stock changed
}

// news is something that a stream is told.
type news struct {
	kind   newsKind
	orders []uuid.UUID // of ordersChanged
}

type newsKind int

const (
	feedLives newsKind = iota
	feedSleeps
	ordersChanged
	replaced // by a newer stream of the customer
)

func stateOf(live bool) news {
	if live {
		return news{kind: feedLives}
	}
	return news{kind: feedSleeps}
}

// NewFeed returns a feed that [Feed.Run] starts.
func NewFeed(rdb redis.UniversalClient, log *slog.Logger, reg prometheus.Registerer) *Feed {
	f := promauto.With(reg)
	return &Feed{
		rdb: rdb, log: log, streams: map[uuid.UUID]map[*stream]struct{}{},
		open: f.NewGauge(prometheus.GaugeOpts{
			Name: "shop_feed_streams",
			Help: "Open event streams.",
		}),
		dropped: f.NewCounter(prometheus.CounterOpts{
			Name: "shop_feed_streams_dropped_total",
			Help: "Event streams ended because their readers were too slow.",
		}),
	}
}

// Run listens to Redis until ctx ends, and then ends every stream.
func (f *Feed) Run(ctx context.Context) error {
	defer f.end()
	for {
		err := f.listen(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if f.setLive(false) {
			f.log.Warn("feed cannot listen to Redis, keeps trying", "error", err)
		}
		rest(ctx, time.Second)
	}
}

// listen hands out hints until Redis fails, which is also not to answer.
func (f *Feed) listen(ctx context.Context) error {
	sub := f.rdb.Subscribe(ctx, feedChannel)
	defer sub.Close()
	interrupt := context.AfterFunc(ctx, func() { sub.Close() }) // a blocked read does not see ctx
	defer interrupt()
	asked := false
	for {
		message, err := sub.ReceiveTimeout(ctx, feedQuiet)
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() && !asked && f.isLive() {
			asked = true
			if err := sub.Ping(ctx); err != nil {
				return fmt.Errorf("ask Redis whether it lives: %w", err)
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("listen to %s: %w", feedChannel, err)
		}
		asked = false
		switch m := message.(type) {
		case *redis.Subscription:
			if f.setLive(true) {
				f.log.Info("feed listens to Redis")
			}
		case *redis.Message:
			f.receive(m.Payload)
		}
	}
}

func (f *Feed) isLive() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.live
}

// setLive tells every stream that the feed became live, so that its reader looks for what it missed, or that
// it is not any more. It reports whether that is a change.
func (f *Feed) setLive(live bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.live == live {
		return false
	}
	f.live = live
	for _, streams := range f.streams {
		for s := range streams {
			f.tell(s, stateOf(live))
		}
	}
	return true
}

// receive takes one announcer's message. Everybody is told that stock changed, and customers which of
// their own orders did.
func (f *Feed) receive(message string) {
	var hints []hint
	if err := json.Unmarshal([]byte(message), &hints); err != nil {
		f.log.Warn("feed got a message that it cannot read", "error", err)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	changed := map[uuid.UUID][]uuid.UUID{}
	for _, h := range hints {
		if f.streams[h.Customer] != nil {
			changed[h.Customer] = append(changed[h.Customer], h.Order)
		}
	}
	for customer, streams := range f.streams {
		for s := range streams {
			if orders := changed[customer]; orders != nil {
				f.tell(s, news{kind: ordersChanged, orders: orders})
			}
			select {
			case s.stock <- struct{}{}:
			default: // will be told already
			}
		}
	}
}

// tell passes news on, or drops a stream whose reader has let too many of them wait: it comes back, and
// looks at everything again. The caller holds mu.
func (f *Feed) tell(s *stream, n news) {
	select {
	case s.news <- n:
	default:
		f.dropped.Inc()
		f.remove(s)
	}
}

// join opens a stream for a customer. It begins with the state of the feed. One too many ends the customer's
// oldest, which may be dead: a connection whose other end is gone takes minutes to be found out.
func (f *Feed) join(customer uuid.UUID) (*stream, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.ended:
		return nil, Errorf(CodeUnavailable, "The service is stopping. Connect again.")
	case f.count >= streamsPerProcess:
		return nil, Errorf(CodeUnavailable, "There are too many open event streams. Look at the orders from time to time instead.")
	}
	if streams := f.streams[customer]; len(streams) >= streamsPerCustomer {
		oldest := slices.MinFunc(slices.Collect(maps.Keys(streams)), func(a, b *stream) int { return cmp.Compare(a.number, b.number) })
		f.tell(oldest, news{kind: replaced})
		f.remove(oldest)
	}
	f.joined++
	s := &stream{customer: customer, number: f.joined, news: make(chan news, newsWaiting), stock: make(chan struct{}, 1)}
	if f.streams[customer] == nil {
		f.streams[customer] = map[*stream]struct{}{}
	}
	f.streams[customer][s] = struct{}{}
	f.count++
	f.open.Inc()
	f.tell(s, stateOf(f.live))
	return s, nil
}

// leave ends a stream, if it has not ended.
func (f *Feed) leave(s *stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.remove(s)
}

// remove ends a stream, if it has not ended. The caller holds mu.
func (f *Feed) remove(s *stream) {
	if _, there := f.streams[s.customer][s]; !there {
		return
	}
	close(s.news)
	delete(f.streams[s.customer], s)
	if len(f.streams[s.customer]) == 0 {
		delete(f.streams, s.customer)
	}
	f.count--
	f.open.Dec()
}

func (f *Feed) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	for _, streams := range f.streams {
		for s := range streams {
			f.remove(s)
		}
	}
}
