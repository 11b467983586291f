package order

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/redis/go-redis/v9"
)

// feedChannel carries hints from the processes that change orders to those with streams. It is pub/sub:
// Redis keeps none of them.
const feedChannel = "order:feed"

// hint says that an order has changed, and with it perhaps its products' stock.
type hint struct {
	Customer uuid.UUID `json:"customer"`
	Order    uuid.UUID `json:"order"`
}

const (
	hintsWaiting = 4096                  // a Redis that hangs must not fill the memory
	hintsAtOnce  = 1000                  // in one message
	announceRest = 50 * time.Millisecond // between two messages: what comes meanwhile shares the next
)

// Announcer tells every [Feed] what changed. It never waits and promises nothing: whoever depends on a hint that
// is lost has to look from time to time.
type Announcer struct {
	rdb   redis.UniversalClient
	hints chan hint
	log   *slog.Logger
	lost  prometheus.Counter
}

// NewAnnouncer returns an announcer that [Announcer.Run] starts.
func NewAnnouncer(rdb redis.UniversalClient, log *slog.Logger, reg prometheus.Registerer) *Announcer {
	return &Announcer{
		rdb: rdb, hints: make(chan hint, hintsWaiting), log: log,
		lost: promauto.With(reg).NewCounter(prometheus.CounterOpts{
			Name: "shop_feed_hints_lost_total",
			Help: "Changes of orders that no stream was told of: Redis was away, or too slow.",
		}),
	}
}

func (a *Announcer) announce(customer, order uuid.UUID) {
	select {
	case a.hints <- hint{customer, order}:
	default:
		a.lost.Inc()
	}
}

// Run publishes until ctx ends, and then what still waits, as long as Redis takes it. Whoever changes orders should
// have ended before.
func (a *Announcer) Run(ctx context.Context) error {
	failing := false
	for {
		select {
		case <-ctx.Done():
			return a.flush(ctx)
		case first := <-a.hints:
			hints := a.gather(first)
			err := a.publish(ctx, hints)
			if failed := err != nil; failed != failing && ctx.Err() == nil {
				failing = failed
				a.reportHealth(err)
			}
		}
		rest(ctx, announceRest)
	}
}

func (a *Announcer) flush(ctx context.Context) error {
	for {
		select {
		case first := <-a.hints:
			if err := a.publish(ctx, a.gather(first)); err != nil {
				a.lost.Add(float64(len(a.hints)))
				return err
			}
		default:
			return nil
		}
	}
}

func (a *Announcer) reportHealth(err error) {
	if err != nil {
		a.log.Warn("open pages are not told of changes, they look by themselves", "error", err)
		return
	}
	a.log.Info("open pages are told of changes again")
}

// gather takes what else waits.
func (a *Announcer) gather(first hint) []hint {
	hints := []hint{first}
	for len(hints) < hintsAtOnce {
		select {
		case h := <-a.hints:
			hints = append(hints, h)
		default:
			return hints
		}
	}
	return hints
}

func (a *Announcer) publish(ctx context.Context, hints []hint) error {
	message, err := json.Marshal(hints)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second) // what is taken is told, too at the end
	defer cancel()
	if err := a.rdb.Publish(ctx, feedChannel, message).Err(); err != nil {
		a.lost.Add(float64(len(hints)))
		return fmt.Errorf("publish hints: %w", err)
	}
	return nil
}

// rest waits, or less if ctx ends.
func rest(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
