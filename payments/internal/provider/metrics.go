package provider

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// callMetrics are the metrics of the calls to the provider.
type callMetrics struct {
	calls   *prometheus.CounterVec
	seconds *prometheus.HistogramVec
}

// results are the values of the label result, by class of error. A call that worked has "ok", and a call that the limits
// did not allow in time has "no_turn".
var results = map[ErrorClass]string{
	NoAnswer: "no_answer", Busy: "busy", Denied: "denied", Missing: "missing",
	Replayed: "replayed", Refused: "refused", Blocked: "blocked",
}

func newCallMetrics(reg prometheus.Registerer) callMetrics {
	f := promauto.With(reg)
	m := callMetrics{
		calls: f.NewCounterVec(prometheus.CounterOpts{
			Name: "payment_provider_calls_total",
			Help: "Calls to the payment provider, by class and result: ok, no_turn (the limits of calls a second did not " +
				"allow it in time, so it was not made), or the class of the error.",
		}, []string{"class", "result"}),
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "payment_provider_call_seconds",
			Help:    "Duration of the calls to the payment provider, by operation, in seconds.",
			Buckets: []float64{0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3},
		}, []string{"operation"}),
	}
	// These series begin at 0 now, because increase() does not count the event with which a series begins.
	for _, class := range classes {
		m.calls.WithLabelValues(string(class), "ok")
		m.calls.WithLabelValues(string(class), "no_turn")
		for _, result := range results {
			m.calls.WithLabelValues(string(class), result)
		}
	}
	return m
}

// ended counts a call that has ended, or that was not made.
func (m callMetrics) ended(class Class, err error) {
	result := "ok"
	if errClass, failed := classOf(err); failed {
		result = results[errClass]
	}
	if errors.Is(err, errNoTurn) {
		result = "no_turn"
	}
	m.calls.WithLabelValues(string(class), result).Inc()
}
