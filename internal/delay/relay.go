package delay

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Relay copies to Redis the messages that the publisher left in the outbox. Any number of relays may run.
type Relay struct {
	queue   *Queue
	outbox  *Outbox
	log     *slog.Logger
	metrics relayMetrics

	interval   time.Duration // the sleep after a batch that was not full
	maxBackoff time.Duration // the longest sleep after failed runs
	grace      time.Duration // the age up to which the relay leaves a row to the publisher
	batch      int           // the largest number of messages in one transaction
	skip       int           // the number of the oldest messages that cannot be copied now, and must not block others
	timeout    time.Duration // the longest time for one transaction
}

// NewRelay returns a relay that [Relay.Run] starts.
func NewRelay(q *Queue, o *Outbox, log *slog.Logger, reg prometheus.Registerer) *Relay {
	return &Relay{
		queue: q, outbox: o, log: log.With("kind", q.kind), metrics: newRelayMetrics(reg, q.kind),
		interval: 500 * time.Millisecond, maxBackoff: 5 * time.Second,
		grace: time.Second, batch: 500, timeout: 10 * time.Second,
	}
}

// Run relays messages until ctx ends, and returns nil.
func (r *Relay) Run(ctx context.Context) error {
	wait := r.interval
	failing := false
	for ctx.Err() == nil {
		relayed, full, err := r.runOnce(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			if !failing {
				r.log.Warn("relay cannot copy messages to Redis; it keeps trying", "error", err)
			}
			failing = true
			r.metrics.failures.Inc()
			wait = min(2*wait, r.maxBackoff)
		case err == nil && full: // of newer messages: the oldest ones may still fail
		case err == nil:
			if failing {
				r.log.Info("relay copies messages to Redis again", "messages", relayed)
			}
			failing = false
		}
		if relayed > 0 || err == nil {
			wait = r.interval
		}
		if err != nil || !full {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// runOnce copies one batch of the outbox to Redis, and returns the number of the messages that it has copied. If the
// batch was full, there may be further messages, and the next run leaves out those that have failed.
func (r *Relay) runOnce(ctx context.Context) (relayed int, full bool, err error) {
	// Without a timeout a connection whose other end is gone would block the relay for ever.
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	taken, relayed, err := r.outbox.take(ctx, r.grace, r.batch, r.skip, func(msgs []Message) ([]Message, error) {
		// The rows stay locked until Redis answers. If Redis hangs, the timeout releases them.
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return r.queue.scheduleByShard(ctx, msgs)
	})
	r.metrics.relayed.Add(float64(relayed))
	full = taken == r.batch
	if full && relayed < taken {
		r.skip += taken - relayed
	} else {
		r.skip = 0
	}
	return relayed, full, err
}
