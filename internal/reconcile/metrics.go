package reconcile

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	sweeps  *prometheus.CounterVec
	repairs *prometheus.CounterVec
	stuck   prometheus.Gauge
	lastOK  prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer, kind string) metrics {
	f := promauto.With(reg)
	labels := prometheus.Labels{"kind": kind}
	m := metrics{
		sweeps: f.NewCounterVec(prometheus.CounterOpts{
			Name: "reconcile_sweeps_total", ConstLabels: labels,
			Help: "Sweeps, by result: ok, partial (some overdue rows could not be timed out), " +
				"degraded (without Redis), failed, or skipped (another instance was sweeping).",
		}, []string{"result"}),
		repairs: f.NewCounterVec(prometheus.CounterOpts{
			Name: "reconcile_repairs_total", ConstLabels: labels,
			Help: "Repairs, by reason: missing, late or overdue.",
		}, []string{"reason"}),
		stuck: f.NewGauge(prometheus.GaugeOpts{
			Name: "reconcile_stuck_rows", ConstLabels: labels,
			Help: "Overdue rows that the last sweep could not time out, because other sessions have locked " +
				"them or because the statement failed.",
		}),
		lastOK: f.NewGauge(prometheus.GaugeOpts{
			Name: "reconcile_last_success_timestamp_seconds", ConstLabels: labels,
			Help: "Time of this process's last sweep with the result ok or partial, in seconds since 1970.",
		}),
	}
	// Create the series now, at 0: increase() in Prometheus does not count the event that creates a series.
	for _, reason := range []string{"missing", "late", "overdue"} {
		m.repairs.WithLabelValues(reason)
	}
	return m
}

func (m metrics) observe(r Report) {
	m.sweeps.WithLabelValues(string(r.Outcome)).Inc()
	m.repairs.WithLabelValues("missing").Add(float64(r.Missing))
	m.repairs.WithLabelValues("late").Add(float64(r.Late))
	m.repairs.WithLabelValues("overdue").Add(float64(r.Overdue))
	if r.Outcome == OK || r.Outcome == Partial {
		m.lastOK.SetToCurrentTime()
	}
}

// setStuck sets the gauge of stuck rows to those of the last sweep, of this process or of another one.
func (m metrics) setStuck(last Report) { m.stuck.Set(float64(last.Locked + last.Failed)) }

// notStarted counts a sweep that could not start: skipped if another sweep has the lock, else failed.
func (m metrics) notStarted(err error) {
	result := "failed"
	if errors.Is(err, ErrSweeping) {
		result = "skipped"
	}
	m.sweeps.WithLabelValues(result).Inc()
}
