package service

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"text/tabwriter"

	"example.com/shop/bench/loadtest"
)

// BenchmarkTracing places orders with 32 clients while nothing is traced, a tenth of the requests, and all. The
// measurements alternate. The collector takes the spans and reads none.
func BenchmarkTracing(b *testing.B) {
	const rounds = 15
	sink := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer sink.Close()
	modes := []struct {
		name string
		env  []string
	}{
		{"off", nil},
		{"a tenth", []string{
			"OTEL_EXPORTER_OTLP_ENDPOINT=" + sink.URL,
			"OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.1",
		}},
		{"all", []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + sink.URL}},
	}
	for b.Loop() {
		var sites []*loadtest.Site
		for _, m := range modes {
			s := loadtest.NewSite(b, orders, 1000, m.env...)
			s.Place(32, *placeFor, s.Products) // fills the pools and caches
			sites = append(sites, s)
		}
		samples := make([][]sample, len(modes))
		for round := range rounds {
			for i := range sites {
				i = (round + i) % len(sites)
				sites[i].AwaitRelay()
				samples[i] = append(samples[i], sites[i].Place(32, *placeFor, sites[i].Products))
			}
		}
		var text strings.Builder
		table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(table, "\torders/s\trate / rate of off\tp99 ms\tservice µs\tPostgreSQL µs\t")
		for i, m := range modes {
			column := func(of func(sample) float64) []float64 { return values(samples[i], of) }
			shares := column(func(s sample) float64 { return s.Rate })
			for round := range shares { // of the rate in the same round, because the speed of the machine changes
				shares[round] /= samples[0][round].Rate
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t\n", m.name,
				loadtest.Spread(column(func(s sample) float64 { return s.Rate }), "%.0f"),
				loadtest.Spread(shares, "%.2f"),
				loadtest.Spread(column(func(s sample) float64 { return s.P99 }), "%.1f"),
				loadtest.Spread(column(func(s sample) float64 {
					return float64(s.CPU.Service.Microseconds())
				}), "%.0f"),
				loadtest.Spread(column(func(s sample) float64 {
					return float64(s.CPU.Postgres.Microseconds())
				}), "%.0f"))
			rate := loadtest.Median(column(func(s sample) float64 { return s.Rate }))
			b.ReportMetric(rate, "orders/s-"+strings.ReplaceAll(m.name, " ", "-"))
		}
		if err := table.Flush(); err != nil {
			b.Fatal(err)
		}
		b.Logf("medians of %d rounds:\n%s", rounds, text.String())
	}
}
