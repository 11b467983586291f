package delay

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// RelayConfig tunes a relay; zero fields get the defaults.
type RelayConfig struct {
	Interval   time.Duration // between looks at an empty outbox: 500 ms
	Grace      time.Duration // rows younger than this are left to the publisher: 1 s
	Batch      int           // the most messages in one transaction: 500
	Timeout    time.Duration // the most that one transaction may take: 10 s
	MaxBackoff time.Duration // the longest wait while Redis or the database is away: 5 s
}

func (c RelayConfig) withDefaults() RelayConfig {
	c.Interval = cmp.Or(c.Interval, 500*time.Millisecond)
	c.Grace = cmp.Or(c.Grace, time.Second)
	c.Batch = cmp.Or(c.Batch, 500)
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	c.MaxBackoff = cmp.Or(c.MaxBackoff, 5*time.Second)
	return c
}

// Relay brings to Redis the outbox rows that the publisher left. Any number may run.
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

// Run relays until ctx ends and returns nil.
func (r *Relay) Run(ctx context.Context) error {
	wait := r.cfg.Interval
	failing := false
	for ctx.Err() == nil {
		n, err := r.RunOnce(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			if !failing {
				r.log.Warn("relay cannot publish, keeps trying", "error", err)
			}
			failing = true
			r.metrics.failures.Inc()
			wait = min(2*wait, r.cfg.MaxBackoff)
		case err == nil:
			if failing {
				r.log.Info("relay publishes again", "messages", n)
			}
			failing = false
			wait = r.cfg.Interval
		}
		if err != nil || n < r.cfg.Batch {
			pause(ctx, wait)
		}
	}
	return nil
}

// RunOnce publishes one batch of the outbox and returns how many messages it had.
func (r *Relay) RunOnce(ctx context.Context) (int, error) {
	// A connection whose other end is gone without a word would be waited for forever.
	ctx, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	n, err := r.outbox.take(ctx, r.cfg.Grace, r.cfg.Batch, func(msgs []Message) error {
		// The rows are locked meanwhile: a Redis that hangs must not hold them long.
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return r.queue.Schedule(ctx, msgs...)
	})
	r.metrics.relayed.Add(float64(n))
	return n, err
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
