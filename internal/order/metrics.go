package order

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"example.com/shop/internal/rest"
)

type metrics struct {
	placed    prometheus.Counter
	batchSize prometheus.Histogram
	rejected  *prometheus.CounterVec
	paid      prometheus.Counter
	cancelled *prometheus.CounterVec
	lateness  *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer) metrics {
	f := promauto.With(reg)
	m := metrics{
		placed: f.NewCounter(prometheus.CounterOpts{
			Name: "orders_placed_total",
			Help: "Orders placed.",
		}),
		batchSize: f.NewHistogram(prometheus.HistogramOpts{
			Name:    "orders_batch_size",
			Help:    "Placements that were placed together, in one transaction.",
			Buckets: []float64{1, 2, 5, 10, 20, 50, 100, 200},
		}),
		rejected: f.NewCounterVec(prometheus.CounterOpts{
			Name: "orders_rejected_total",
			Help: "Placements rejected, by reason: the code of the problem.",
		}, []string{"reason"}),
		paid: f.NewCounter(prometheus.CounterOpts{
			Name: "orders_paid_total",
			Help: "Orders paid at once.",
		}),
		cancelled: f.NewCounterVec(prometheus.CounterOpts{
			Name: "orders_cancelled_total",
			Help: "Orders cancelled, by reason: timeout or customer.",
		}, []string{"reason"}),
		lateness: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "order_cancel_lateness_seconds",
			Help:    "Time from an unpaid order's due time to its timeout, by path: worker or reconciler.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600, 4 * 3600},
		}, []string{"path"}),
	}
	// These series begin at 0 now, because increase() does not count the event with which a series begins.
	for _, actor := range []Actor{Worker, Reconciler} {
		m.lateness.WithLabelValues(string(actor))
	}
	for _, reason := range []CancelReason{ByTimeout, ByCustomer} {
		m.cancelled.WithLabelValues(string(reason))
	}
	m.rejected.WithLabelValues(rest.Overloaded.Code)
	return m
}
