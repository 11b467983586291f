package order

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	placed    prometheus.Counter
	replayed  prometheus.Counter
	refused   *prometheus.CounterVec
	paid      prometheus.Counter
	cancelled *prometheus.CounterVec
	lateness  *prometheus.HistogramVec
	outcomes  *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) metrics {
	f := promauto.With(reg)
	m := metrics{
		placed: f.NewCounter(prometheus.CounterOpts{
			Name: "shop_orders_placed_total",
			Help: "Orders placed.",
		}),
		replayed: f.NewCounter(prometheus.CounterOpts{
			Name: "shop_orders_replayed_total",
			Help: "Placements answered with the order that their idempotency key had made before.",
		}),
		refused: f.NewCounterVec(prometheus.CounterOpts{
			Name: "shop_orders_refused_total",
			Help: "Placements refused, by reason: the code of the problem answer.",
		}, []string{"reason"}),
		paid: f.NewCounter(prometheus.CounterOpts{
			Name: "shop_orders_paid_total",
			Help: "Orders paid.",
		}),
		cancelled: f.NewCounterVec(prometheus.CounterOpts{
			Name: "shop_orders_cancelled_total",
			Help: "Orders cancelled, by reason: timeout or customer.",
		}, []string{"reason"}),
		lateness: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "shop_order_cancel_lateness_seconds",
			Help:    "Time from an order's deadline to its cancellation, by path: worker or reconciler.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600, 4 * 3600},
		}, []string{"path"}),
		outcomes: f.NewCounterVec(prometheus.CounterOpts{
			Name: "shop_cancel_outcomes_total",
			Help: "What became of orders that were asked to time out: cancelled, terminal (paid or cancelled before), not_due, locked, blocked (a product of theirs is locked) or gone (no such order).",
		}, []string{"outcome"}),
	}
	// They begin at 0: of a series that begins with its first event, Prometheus does not see that one.
	for _, actor := range []Actor{Worker, Reconciler} {
		m.lateness.WithLabelValues(string(actor))
	}
	for _, reason := range []CancelReason{ByTimeout, ByCustomer} {
		m.cancelled.WithLabelValues(string(reason))
	}
	return m
}
