package parttest

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/testenv"
)

// Metrics returns the values of counters and gauges, and the counts of histograms, by their names with the values of
// their labels.
func Metrics(t testing.TB, reg prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	testenv.Must(t, err)
	values := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, label := range m.GetLabel() {
				name += " " + label.GetValue()
			}
			values[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() +
				float64(m.GetHistogram().GetSampleCount())
		}
	}
	return values
}
