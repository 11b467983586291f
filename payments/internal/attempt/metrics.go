package attempt

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	opened prometheus.Counter
	ended  *prometheus.CounterVec
	paid   prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) metrics {
	f := promauto.With(reg)
	m := metrics{
		opened: f.NewCounter(prometheus.CounterOpts{
			Name: "payment_attempts_opened_total",
			Help: "Payment attempts opened.",
		}),
		ended: f.NewCounterVec(prometheus.CounterOpts{
			Name: "payment_attempts_ended_total",
			Help: "Payment attempts ended, by state: succeeded or closed.",
		}, []string{"state"}),
		paid: f.NewCounter(prometheus.CounterOpts{
			Name: "payment_orders_paid_total",
			Help: "Orders paid at the payment provider.",
		}),
	}
	// These series begin at 0 now, because increase() does not count the event with which a series begins.
	for _, state := range []State{Succeeded, Closed} {
		m.ended.WithLabelValues(string(state))
	}
	return m
}
