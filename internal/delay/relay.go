package delay

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// RelayConfig configures a relay. Zero fields get the defaults.
type RelayConfig struct {
	Interval   time.Duration // the sleep after a batch that was not full. Default 500 ms
	Grace      time.Duration // the age up to which the relay leaves a row to the publisher. Default 1 s
	Batch      int           // the largest number of messages in one transaction. Default 500
	Timeout    time.Duration // the longest time for one transaction. Default 10 s
	MaxBackoff time.Duration // the longest sleep after failed runs. Default 5 s
}

func (c RelayConfig) withDefaults() RelayConfig {
	c.Interval = cmp.Or(c.Interval, 500*time.Millisecond)
	c.Grace = cmp.Or(c.Grace, time.Second)
	c.Batch = cmp.Or(c.Batch, 500)
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, 5*time.Second)
	return c
}

// Relay copies to Redis the messages that the publisher left in the outbox. Any number of relays may run.
type Relay struct {
	queue   *Queue
	outbox  *Outbox
	cfg     RelayConfig
	log     *slog.Logger
	metrics relayMetrics
}

// NewRelay returns a relay that [Relay.Run] starts.
func NewRelay(q *Queue, o *Outbox, cfg RelayConfig, log *slog.Logger, reg prometheus.Registerer) *Relay {
	return &Relay{
		queue: q, outbox: o, cfg: cfg.withDefaults(), log: log.With("kind", q.kind),
		metrics: newRelayMetrics(reg, q.kind),
	}
}

// Run relays messages until ctx ends, and returns nil.
func (r *Relay) Run(ctx context.Context) error {
	wait := r.cfg.Interval
	failing := false
	for ctx.Err() == nil {
		n, err := r.runOnce(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			if !failing {
				r.log.Warn("relay cannot copy messages to Redis; it keeps trying", "error", err)
			}
			failing = true
			r.metrics.failures.Inc()
			wait = min(2*wait, r.cfg.MaxBackoff)
		case err == nil:
			if failing {
				r.log.Info("relay copies messages to Redis again", "messages", n)
			}
			failing = false
			wait = r.cfg.Interval
		}
		if err != nil || n < r.cfg.Batch {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// runOnce copies one batch of the outbox to Redis and returns the number of its messages.
func (r *Relay) runOnce(ctx context.Context) (int, error) {
	// Without a timeout a connection whose other end is gone would block the relay for ever.
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	n, err := r.outbox.take(ctx, r.cfg.Grace, r.cfg.Batch, func(msgs []Message) error {
		// The rows stay locked until Redis answers. If Redis hangs, the timeout releases them.
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return r.queue.Schedule(ctx, msgs...)
	})
	r.metrics.relayed.Add(float64(n))
	return n, err
}
