package payment

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// gauge is a metric that is read at each scrape.
type gauge struct {
	name, help string
	labels     []string
}

// gauges is a collector of metrics that one function reads at each scrape.
type gauges struct {
	descs map[string]*prometheus.Desc // by name
	read  func(ctx context.Context, set setGauge) error
}

// setGauge sets a gauge, by its name.
type setGauge = func(name string, value float64, labels ...string)

// newGauges returns a collector. If read returns an error, or the database does not answer within a second, the
// scrape lacks these metrics.
func newGauges(read func(ctx context.Context, set setGauge) error, all ...gauge) prometheus.Collector {
	descs := map[string]*prometheus.Desc{}
	for _, g := range all {
		descs[g.name] = prometheus.NewDesc(g.name, g.help, g.labels, nil)
	}
	return &gauges{descs, read}
}

// Describe implements [prometheus.Collector].
func (g *gauges) Describe(ch chan<- *prometheus.Desc) {
	for _, desc := range g.descs {
		ch <- desc
	}
}

// Collect implements [prometheus.Collector].
func (g *gauges) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = g.read(ctx, func(name string, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(g.descs[name], prometheus.GaugeValue, value, labels...)
	})
}
