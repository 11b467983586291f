package parttest

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"example.com/shop/internal/testenv"
)

// Counter returns the value of a counter without labels.
func Counter(t testing.TB, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	return metric(t, reg, name).GetCounter().GetValue()
}

// Gauge returns the value of a gauge without labels.
func Gauge(t testing.TB, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	return metric(t, reg, name).GetGauge().GetValue()
}

func metric(t testing.TB, reg *prometheus.Registry, name string) *dto.Metric {
	t.Helper()
	families, err := reg.Gather()
	testenv.Must(t, err)
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0]
		}
	}
	t.Fatalf("there is no metric %s", name)
	return nil
}
