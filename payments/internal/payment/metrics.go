package payment

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	opened   prometheus.Counter
	ended    *prometheus.CounterVec
	paid     prometheus.Counter
	webhooks *prometheus.CounterVec
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
		webhooks: f.NewCounterVec(prometheus.CounterOpts{
			Name: "payment_webhooks_total",
			Help: "Webhooks of the payment provider, by result: stored, repeated, rejected (the signature is wrong or old), unmatched (this shop's, and it names nothing that the database has), foreign (another application's), other_mode (of test mode in a live shop, or the reverse) or unusable (it cannot be stored).",
		}, []string{"result"}),
	}
	// These series begin at 0 now, because increase() does not count the event with which a series begins.
	for _, state := range []State{Succeeded, Closed} {
		m.ended.WithLabelValues(string(state))
	}
	for _, result := range []string{"stored", "repeated", "rejected", unmatched, foreign, otherMode, "unusable"} {
		m.webhooks.WithLabelValues(result)
	}
	return m
}
