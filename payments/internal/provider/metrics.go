package provider

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// callMetrics are the metrics of the calls to the provider.
type callMetrics struct {
	calls    *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	breakers *prometheus.GaugeVec
	waits    *prometheus.CounterVec
	refused  *prometheus.CounterVec
}

// results are the values of the label result, by class of error.
var results = map[ErrorClass]string{
	NoAnswer: "no_answer", Busy: "busy", Denied: "denied", Missing: "missing",
	Replayed: "replayed", Refused: "refused", Blocked: "blocked",
}

func newCallMetrics(reg prometheus.Registerer) callMetrics {
	f := promauto.With(reg)
	m := callMetrics{
		calls: f.NewCounterVec(prometheus.CounterOpts{
			Name: "payment_provider_calls_total",
			Help: "Calls to the payment provider, by operation and result: ok, or the class of the error.",
		}, []string{"operation", "result"}),
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "payment_provider_call_seconds",
			Help:    "Duration of the calls to the payment provider, by operation, in seconds.",
			Buckets: []float64{0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3},
		}, []string{"operation"}),
		breakers: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "payment_provider_breaker_open",
			Help: "1 while the breaker of a class of calls to the payment provider is open: its calls fail at once.",
		}, []string{"class"}),
		waits: f.NewCounterVec(prometheus.CounterOpts{
			Name: "payment_provider_waits_total",
			Help: "Calls that the limits of calls a second let pass (took) or not in time (gave_up), by class.",
		}, []string{"class", "result"}),
		refused: f.NewCounterVec(prometheus.CounterOpts{
			Name: "payment_checkouts_refused_total",
			Help: "Failed calls to create a checkout, by cause: the class of the provider's error.",
		}, []string{"cause"}),
	}
	// These series begin at 0 now, because increase() does not count the event with which a series begins.
	for _, operation := range operations {
		m.calls.WithLabelValues(operation, "ok")
		for _, result := range results {
			m.calls.WithLabelValues(operation, result)
		}
	}
	for _, result := range results {
		m.refused.WithLabelValues(result)
	}
	for _, class := range classes {
		m.breaker(class, false)
		for _, result := range []string{"took", "gave_up"} {
			m.waits.WithLabelValues(string(class), result)
		}
	}
	return m
}

func (m callMetrics) called(operation string, err error, took time.Duration) {
	result := "ok"
	if class, failed := classOf(err); failed {
		result = results[class]
	}
	m.calls.WithLabelValues(operation, result).Inc()
	m.seconds.WithLabelValues(operation).Observe(took.Seconds())
}

// refusedBy counts an error because of which a customer gets no checkout.
func (m callMetrics) refusedBy(err error) {
	if class, failed := classOf(err); failed {
		m.refused.WithLabelValues(results[class]).Inc()
	}
}

func (m callMetrics) breaker(class Class, open bool) {
	value := 0.0
	if open {
		value = 1
	}
	m.breakers.WithLabelValues(string(class)).Set(value)
}
