package attempt

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"example.com/shop/payments/internal/refund"
)

type metrics struct {
	opened prometheus.Counter
	ended  *prometheus.CounterVec
	owed   *prometheus.CounterVec
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
		owed: f.NewCounterVec(prometheus.CounterOpts{
			Name: "payment_refunds_owed_total",
			Help: "Refunds owed for payments that did not pay their orders, by reason: late, duplicate or mismatch.",
		}, []string{"reason"}),
	}
	// These series begin at 0 now, because increase() does not count the event with which a series begins.
	for _, state := range []State{Succeeded, Closed} {
		m.ended.WithLabelValues(string(state))
	}
	for _, reason := range []refund.Reason{refund.Late, refund.Duplicate, refund.Mismatch} {
		m.owed.WithLabelValues(string(reason))
	}
	return m
}
