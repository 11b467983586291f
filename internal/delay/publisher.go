package delay

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sethvargo/go-retry"
	"github.com/sony/gobreaker/v2"
)

// PublisherConfig tunes the fast path; zero fields get the defaults.
type PublisherConfig struct {
	Budget          time.Duration // the most that one Publish takes, retries included: 100 ms
	BreakerFailures int           // failed publishes in a row that open the breaker: 5
	BreakerOpen     time.Duration // how long it stays open before one publish tries again: 2 s
}

func (c PublisherConfig) withDefaults() PublisherConfig {
	c.Budget = cmp.Or(c.Budget, 100*time.Millisecond)
	c.BreakerFailures = cmp.Or(c.BreakerFailures, 5)
	c.BreakerOpen = cmp.Or(c.BreakerOpen, 2*time.Second)
	return c
}

// Publisher is the fast path from a committed outbox row to Redis. Whether it works decides nothing but
// when the task reaches Redis: a row that stays is the relay's.
type Publisher struct {
	queue     *Queue
	outbox    *Outbox
	cfg       PublisherConfig
	breaker   *gobreaker.CircuitBreaker[struct{}]
	log       *slog.Logger
	metrics   publisherMetrics
	published chan string
}

// NewPublisher returns a publisher. Its [Publisher.Run] must run too, for the rows to be deleted.
func NewPublisher(q *Queue, o *Outbox, cfg PublisherConfig, log *slog.Logger, reg prometheus.Registerer) *Publisher {
	cfg = cfg.withDefaults()
	log = log.With("kind", q.kind)
	return &Publisher{
		queue: q, outbox: o, cfg: cfg, log: log,
		metrics: newPublisherMetrics(reg, q.kind),
		// Room for what a busy instance publishes while one DELETE is under way.
		published: make(chan string, 8*flushRows),
		breaker: gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
			Name:        "redis",
			Timeout:     cfg.BreakerOpen,
			ReadyToTrip: func(c gobreaker.Counts) bool { return int(c.ConsecutiveFailures) >= cfg.BreakerFailures },
			OnStateChange: func(_ string, from, to gobreaker.State) {
				log.Warn("publisher's breaker changed", "from", from.String(), "to", to.String())
			},
		}),
	}
}

// Publish schedules a message whose outbox row is committed, and tells whether Redis has it. It takes
// at most the budget, and nothing while the breaker is open. The caller has made its promise by then:
// its context's end does not count, and there is no error for it to handle.
func (p *Publisher) Publish(ctx context.Context, m Message) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.Budget)
	defer cancel()
	_, err := p.breaker.Execute(func() (struct{}, error) {
		return struct{}{}, retry.Do(ctx, shortBackoff(), func(ctx context.Context) error {
			return retry.RetryableError(p.queue.Schedule(ctx, m))
		})
	})
	switch {
	case err == nil:
		p.metrics.published.WithLabelValues("ok").Inc()
		select {
		case p.published <- m.ID:
		default: // the relay publishes it once more and deletes the row
		}
	case errors.Is(err, gobreaker.ErrOpenState), errors.Is(err, gobreaker.ErrTooManyRequests):
		p.metrics.published.WithLabelValues("breaker_open").Inc()
	default:
		p.metrics.published.WithLabelValues("failed").Inc()
		p.log.Warn("not published, left to the relay", "task", m.ID, "error", err)
	}
	return err == nil
}

func shortBackoff() retry.Backoff {
	return retry.WithMaxRetries(3, retry.WithJitterPercent(20, retry.NewExponential(10*time.Millisecond)))
}

// The rows of published messages are deleted together: one commit for many, and none for a customer
// to wait for. A crash before it costs a second, harmless publish by the relay.
const (
	flushRows  = 500
	flushEvery = 50 * time.Millisecond
)

// Run deletes the outbox rows of published messages until ctx ends, then the last ones, and returns nil.
func (p *Publisher) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			p.flush(ctx, p.collect(ctx, nil))
			return nil
		case id := <-p.published:
			p.flush(ctx, p.collect(ctx, []string{id}))
		}
	}
}

// collect adds what is published until a flush is due; after ctx's end only what is already there.
func (p *Publisher) collect(ctx context.Context, ids []string) []string {
	due := time.NewTimer(flushEvery)
	defer due.Stop()
	for len(ids) < flushRows {
		select {
		case id := <-p.published:
			ids = append(ids, id)
			continue
		default:
		}
		select {
		case id := <-p.published:
			ids = append(ids, id)
		case <-due.C:
			return ids
		case <-ctx.Done():
			return ids
		}
	}
	return ids
}

func (p *Publisher) flush(ctx context.Context, ids []string) {
	if len(ids) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := p.outbox.Delete(ctx, ids); err != nil {
		p.log.Warn("published messages stay in the outbox, the relay repeats them", "messages", len(ids), "error", err)
	}
}
