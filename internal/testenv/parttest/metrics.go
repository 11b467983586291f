package parttest

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/testenv"
)

// Counter returns the value of a counter without labels.
func Counter(t testing.TB, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	testenv.Must(t, err)
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
