package delay

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sethvargo/go-retry"
	"github.com/sony/gobreaker/v2"
)

const (
	breakerFailures = 5               // the number of consecutive failures that opens the breaker
	breakerOpen     = 2 * time.Second // the time until an open breaker lets one Publish try again
)

// Publisher is the fast path from a committed outbox row to Redis. If a publish fails, the task reaches Redis later:
// the row stays in the outbox, and the relay copies it.
type Publisher struct {
	queue     *Queue
	outbox    *Outbox
	budget    time.Duration // the longest time for one Publish, with its retries
	breakers  []*breaker    // of each shard, because another shard may be on a node that answers
	log       *slog.Logger
	results   *prometheus.CounterVec
	published chan Message
}

type breaker = gobreaker.CircuitBreaker[struct{}]

// NewPublisher returns a publisher. Its [Publisher.Run] must run too, because it deletes the rows.
func NewPublisher(q *Queue, o *Outbox, log *slog.Logger, reg prometheus.Registerer) *Publisher {
	p := &Publisher{
		queue: q, outbox: o, budget: 100 * time.Millisecond, log: log.With("kind", q.kind),
		results: newPublished(reg, q.kind),
		// The buffer keeps the messages that are published while rows are deleted.
		published: make(chan Message, 8*flushRows),
	}
	for shard := range q.shards {
		p.breakers = append(p.breakers, newBreaker(p.log.With("shard", shard)))
	}
	return p
}

func newBreaker(log *slog.Logger) *breaker {
	return gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name:        "redis",
		Timeout:     breakerOpen,
		ReadyToTrip: func(c gobreaker.Counts) bool { return int(c.ConsecutiveFailures) >= breakerFailures },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			switch {
			case from == gobreaker.StateClosed:
				log.Warn("the publisher's circuit breaker opened: the relay publishes the messages until Redis is back")
			case to == gobreaker.StateClosed:
				log.Info("the publisher's circuit breaker closed: messages are published again")
			}
		},
	})
}

// Publish schedules messages whose outbox rows are committed, in one round trip to each shard at the same time, and
// reports whether it succeeded. It takes at most the budget, and leaves out a shard while its breaker is open.
// Cancelling ctx does not abort the publish, because the rows are committed already. The caller needs no error, because
// the relay repeats a failed publish.
func (p *Publisher) Publish(ctx context.Context, msgs ...Message) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.budget)
	defer cancel()
	published := p.queue.eachShard(msgs, func(shard int, group []Message) bool {
		return p.publish(ctx, p.breakers[shard], group)
	})
	return len(published) == len(msgs)
}

// publish is Publish for messages of one shard.
func (p *Publisher) publish(ctx context.Context, b *breaker, msgs []Message) bool {
	_, err := b.Execute(func() (struct{}, error) {
		backoff := retry.WithJitterPercent(20, retry.NewExponential(10*time.Millisecond))
		return struct{}{}, retry.Do(ctx, retry.WithMaxRetries(3, backoff), func(ctx context.Context) error {
			return retry.RetryableError(p.queue.Schedule(ctx, msgs...))
		})
	})
	switch {
	case err == nil:
		p.results.WithLabelValues("ok").Add(float64(len(msgs)))
		for _, m := range msgs {
			select {
			case p.published <- m:
			default: // the buffer is full: the relay publishes the message once more and deletes the row
			}
		}
	case errors.Is(err, gobreaker.ErrOpenState), errors.Is(err, gobreaker.ErrTooManyRequests):
		p.results.WithLabelValues("breaker_open").Add(float64(len(msgs)))
	default:
		p.results.WithLabelValues("failed").Add(float64(len(msgs)))
		if b.State() == gobreaker.StateClosed { // otherwise the breaker has logged that it opened
			p.log.Warn("messages not published; the relay will publish them",
				"messages", len(msgs), "first", msgs[0].ID, "error", err)
		}
	}
	return err == nil
}

// One statement deletes the rows of many published messages, so they share a commit, and no caller of Publish waits
// for it. After a crash before the commit the relay publishes the messages a second time, which is harmless.
const (
	flushRows = 500 // the largest number of rows that one statement deletes
	// flushDelay is the time for which the first message waits for further ones. It is far below the grace of the
	// relay, because the relay publishes a row that is left after the grace once more.
	flushDelay = 50 * time.Millisecond
)

// Run deletes the outbox rows of published messages until ctx ends. Then it deletes the rows of the messages in the
// buffer, and returns nil. If rows are left, the relay publishes their messages once more.
func (p *Publisher) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			p.flush(ctx)
			return nil
		case m := <-p.published:
			select {
			case <-time.After(flushDelay):
			case <-ctx.Done():
			}
			p.flush(ctx, m)
		}
	}
}

// flush deletes the outbox rows of msgs, and of the messages in the buffer.
func (p *Publisher) flush(ctx context.Context, msgs ...Message) {
	for range len(p.published) {
		msgs = append(msgs, <-p.published)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	for rows := range slices.Chunk(msgs, flushRows) {
		if err := p.outbox.Delete(ctx, rows); err != nil {
			p.log.Warn("published messages could not be deleted from the outbox; the relay publishes them again",
				"error", err)
			return
		}
	}
}
