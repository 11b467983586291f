package delay

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// kindLabel distinguishes the queues of one process.
func kindLabel(kind string) prometheus.Labels { return prometheus.Labels{"kind": kind} }

type workerMetrics struct {
	deliveries *prometheus.CounterVec
	lost       prometheus.Counter
	handling   prometheus.Histogram
}

func newWorkerMetrics(reg prometheus.Registerer, kind string) workerMetrics {
	f := promauto.With(reg)
	return workerMetrics{
		deliveries: f.NewCounterVec(prometheus.CounterOpts{
			Name: "delay_deliveries_total", ConstLabels: kindLabel(kind),
			Help: "Deliveries that a worker acknowledged, retried or buried, by outcome: done, retry or bury.",
		}, []string{"outcome"}),
		lost: f.NewCounter(prometheus.CounterOpts{
			Name: "delay_leases_lost_total", ConstLabels: kindLabel(kind),
			Help: "Deliveries whose lease ended before the worker acknowledged, retried or buried them.",
		}),
		handling: f.NewHistogram(prometheus.HistogramOpts{
			Name: "delay_handler_seconds", ConstLabels: kindLabel(kind),
			Help:    "Time that the handler took for a batch, in seconds.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
	}
}

func newPublished(reg prometheus.Registerer, kind string) *prometheus.CounterVec {
	published := promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
		Name: "delay_publishes_total", ConstLabels: kindLabel(kind),
		Help: "Publishes on the fast path, by result: ok, failed or breaker_open.",
	}, []string{"result"})
	// Create the series now, at 0: increase() in Prometheus does not count the event that creates a series.
	for _, result := range []string{"ok", "failed", "breaker_open"} {
		published.WithLabelValues(result)
	}
	return published
}

type relayMetrics struct {
	relayed  prometheus.Counter
	failures prometheus.Counter
}

func newRelayMetrics(reg prometheus.Registerer, kind string) relayMetrics {
	f := promauto.With(reg)
	return relayMetrics{
		relayed: f.NewCounter(prometheus.CounterOpts{
			Name: "delay_relayed_total", ConstLabels: kindLabel(kind),
			Help: "Messages that the relay copied from the outbox to Redis.",
		}),
		failures: f.NewCounter(prometheus.CounterOpts{
			Name: "delay_relay_failures_total", ConstLabels: kindLabel(kind),
			Help: "Relay runs that failed.",
		}),
	}
}

// depthCollector reads Redis and the outbox on each scrape. So all processes return the same numbers, and none of them
// polls.
type depthCollector struct {
	queue   *Queue
	outbox  *Outbox
	tasks   *prometheus.Desc
	waiting *prometheus.Desc
	backlog *prometheus.Desc
	oldest  *prometheus.Desc
}

// NewDepthCollector returns a collector of the depth of a queue by state, and of the backlog of its outbox. If Redis
// or the database does not answer within a second, the scrape omits its values.
func NewDepthCollector(q *Queue, o *Outbox) prometheus.Collector {
	labels := kindLabel(q.kind)
	return &depthCollector{
		queue: q, outbox: o,
		tasks: prometheus.NewDesc("delay_tasks",
			"Tasks in Redis, by state: scheduled, due, leased or dead.", []string{"state"}, labels),
		waiting: prometheus.NewDesc("delay_oldest_due_seconds",
			"Time that the oldest due task has waited for a claim, in seconds.", nil, labels),
		backlog: prometheus.NewDesc("delay_outbox_messages",
			"Messages in the outbox that wait to be copied to Redis.", nil, labels),
		oldest: prometheus.NewDesc("delay_outbox_oldest_seconds",
			"Age of the oldest message in the outbox, in seconds.", nil, labels),
	}
}

func (c *depthCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.tasks, c.waiting, c.backlog, c.oldest} {
		ch <- d
	}
}

func (c *depthCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if d, err := c.queue.Depth(ctx); err == nil {
		gauge(c.tasks, float64(d.Scheduled), "scheduled")
		gauge(c.tasks, float64(d.Due), "due")
		gauge(c.tasks, float64(d.Leased), "leased")
		gauge(c.tasks, float64(d.Dead), "dead")
		gauge(c.waiting, d.OldestDue.Seconds())
	}
	ctx, cancel = context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if count, oldest, err := c.outbox.Backlog(ctx); err == nil {
		gauge(c.backlog, float64(count))
		gauge(c.oldest, oldest.Seconds())
	}
}
