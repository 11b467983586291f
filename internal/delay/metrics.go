package delay

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// kindLabel tells the queues of one process apart.
func kindLabel(kind string) prometheus.Labels { return prometheus.Labels{"kind": kind} }

type workerMetrics struct {
	settled  *prometheus.CounterVec
	lost     prometheus.Counter
	batch    prometheus.Histogram
	handling prometheus.Histogram
}

func newWorkerMetrics(reg prometheus.Registerer, kind string) workerMetrics {
	f := promauto.With(reg)
	return workerMetrics{
		settled: f.NewCounterVec(prometheus.CounterOpts{
			Name: "shop_delay_settled_total", ConstLabels: kindLabel(kind),
			Help: "Deliveries settled, by outcome: done, retry or bury.",
		}, []string{"outcome"}),
		lost: f.NewCounter(prometheus.CounterOpts{
			Name: "shop_delay_leases_lost_total", ConstLabels: kindLabel(kind),
			Help: "Deliveries whose lease ran out before they were settled.",
		}),
		batch: f.NewHistogram(prometheus.HistogramOpts{
			Name: "shop_delay_batch_tasks", ConstLabels: kindLabel(kind),
			Help:    "Tasks in a claimed batch.",
			Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000},
		}),
		handling: f.NewHistogram(prometheus.HistogramOpts{
			Name: "shop_delay_handler_seconds", ConstLabels: kindLabel(kind),
			Help:    "Time that the handler took for a batch.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
	}
}

type publisherMetrics struct {
	published *prometheus.CounterVec
}

func newPublisherMetrics(reg prometheus.Registerer, kind string) publisherMetrics {
	m := publisherMetrics{
		published: promauto.With(reg).NewCounterVec(prometheus.CounterOpts{
			Name: "shop_delay_published_total", ConstLabels: kindLabel(kind),
			Help: "Messages on the fast path, by result: ok, failed or breaker_open.",
		}, []string{"result"}),
	}
	// They begin at 0: of a series that begins with its first event, Prometheus does not see that one.
	for _, result := range []string{"ok", "failed", "breaker_open"} {
		m.published.WithLabelValues(result)
	}
	return m
}

type relayMetrics struct {
	relayed  prometheus.Counter
	failures prometheus.Counter
}

func newRelayMetrics(reg prometheus.Registerer, kind string) relayMetrics {
	f := promauto.With(reg)
	return relayMetrics{
		relayed: f.NewCounter(prometheus.CounterOpts{
			Name: "shop_delay_relayed_total", ConstLabels: kindLabel(kind),
			Help: "Messages that the relay brought from the outbox to Redis.",
		}),
		failures: f.NewCounter(prometheus.CounterOpts{
			Name: "shop_delay_relay_failures_total", ConstLabels: kindLabel(kind),
			Help: "Relay runs that failed.",
		}),
	}
}

// depthCollector asks Redis and the outbox when it is scraped, so that every instance tells the same
// and none polls.
type depthCollector struct {
	queue   *Queue
	outbox  *Outbox
	tasks   *prometheus.Desc
	waiting *prometheus.Desc
	owed    *prometheus.Desc
	oldest  *prometheus.Desc
}

// NewDepthCollector returns a collector of a queue's depth by state and of its outbox's backlog. What
// cannot be read within a second is left out of the scrape.
func NewDepthCollector(q *Queue, o *Outbox) prometheus.Collector {
	labels := kindLabel(q.kind)
	return &depthCollector{
		queue: q, outbox: o,
		tasks: prometheus.NewDesc("shop_delay_tasks",
			"Tasks in Redis, by state: scheduled, due, leased or dead.", []string{"state"}, labels),
		waiting: prometheus.NewDesc("shop_delay_oldest_due_seconds",
			"How long the oldest due task has waited to be claimed.", nil, labels),
		owed: prometheus.NewDesc("shop_delay_outbox_messages",
			"Messages in the outbox, owed to Redis.", nil, labels),
		oldest: prometheus.NewDesc("shop_delay_outbox_oldest_seconds",
			"Age of the oldest message in the outbox.", nil, labels),
	}
}

func (c *depthCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.tasks, c.waiting, c.owed, c.oldest} {
		ch <- d
	}
}

func (c *depthCollector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	withinSecond := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(context.Background(), time.Second)
	}
	ctx, cancel := withinSecond()
	defer cancel()
	if d, err := c.queue.Depth(ctx); err == nil {
		gauge(c.tasks, float64(d.Scheduled), "scheduled")
		gauge(c.tasks, float64(d.Due), "due")
		gauge(c.tasks, float64(d.Leased), "leased")
		gauge(c.tasks, float64(d.Dead), "dead")
		gauge(c.waiting, d.OldestDue.Seconds())
	}
	ctx, cancel = withinSecond()
	defer cancel()
	if count, oldest, err := c.outbox.Backlog(ctx); err == nil {
		gauge(c.owed, float64(count))
		gauge(c.oldest, oldest.Seconds())
	}
}
