package service

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"example.com/shop/bench/loadtest"
	"example.com/shop/bench/pgbench"
	"example.com/shop/internal/testenv"
)

// BenchmarkPlace places orders of one item over HTTP, with 1, 32 and 512 clients, for 1,000 products and for one
// product. For comparison, pgbench runs the statement of the service with 16 clients for 50 products on the same
// server. PostgreSQL syncs to disk, as in production.
//
// The measurements are repeated in rounds, because the speed of a machine changes from one minute to the next. The
// table shows the median of the rounds, and in parentheses the least and the greatest value.
func BenchmarkPlace(b *testing.B) {
	const rounds = 5
	s := loadtest.NewSite(b, orders, 1000)
	measurements := []measurement{{"pgbench", func() sample { return placeWithPgbench(b, s, 16, 50) }}}
	for _, clients := range []int{1, 32, 512} {
		measurements = append(measurements,
			measurement{fmt.Sprint(clients, "-spread"), func() sample {
				return s.Place(clients, *placeFor, s.Products)
			}},
			measurement{fmt.Sprint(clients, "-hot"), func() sample {
				return s.Place(clients, *placeFor, s.Products[:1])
			}})
	}
	for b.Loop() {
		loadtest.ClosedLoop(b, s.Addr(), 32, *placeFor, s.Orders("", s.Products)) // fills the pools and caches
		samples := map[string][]sample{}
		for round := range rounds {
			for i := range measurements { // each round begins with another measurement
				m := measurements[(round+i)%len(measurements)]
				s.AwaitRelay()
				samples[m.name] = append(samples[m.name], m.run())
			}
		}
		reportPlacements(b, measurements, samples)
	}
}

// measurement is one row of the table of BenchmarkPlace.
type measurement struct {
	name string
	run  func() sample
}

// sample is the result of a measurement in one round.
type sample = loadtest.Sample

func reportPlacements(b *testing.B, measurements []measurement, samples map[string][]sample) {
	b.Helper()
	rates := func(name string) []float64 { return values(samples[name], func(s sample) float64 { return s.Rate }) }
	base := loadtest.Median(rates("pgbench"))
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\torders/s\t/ pgbench\thot / spread\tp50 ms\tp99 ms\t"+
		"service µs\tPostgreSQL µs\tRedis µs\tclients µs\tfailed\t")
	for _, m := range measurements {
		all := samples[m.name]
		column := func(of func(sample) float64) []float64 { return values(all, of) }
		cpu := func(of func(loadtest.Usage) time.Duration) string {
			microseconds := column(func(s sample) float64 { return float64(of(s.CPU).Microseconds()) })
			return fmt.Sprintf("%.0f", loadtest.Median(microseconds))
		}
		p50, p99 := column(func(s sample) float64 { return s.P50 }), column(func(s sample) float64 { return s.P99 })
		rate, hot, failed := loadtest.Median(rates(m.name)), "", 0
		if clients, found := strings.CutSuffix(m.name, "-hot"); found {
			ratio := rate / loadtest.Median(rates(clients+"-spread"))
			hot = fmt.Sprintf("%.2f", ratio)
			b.ReportMetric(ratio, "hot/spread-"+clients)
		}
		for _, s := range all {
			failed += s.Failed
		}
		fmt.Fprintf(table, "%s\t%s\t%.2f\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t\n",
			m.name, loadtest.Spread(rates(m.name), "%.0f"), rate/base, hot,
			loadtest.Spread(p50, "%.2f"), loadtest.Spread(p99, "%.2f"),
			cpu(func(u loadtest.Usage) time.Duration { return u.Service }),
			cpu(func(u loadtest.Usage) time.Duration { return u.Postgres }),
			cpu(func(u loadtest.Usage) time.Duration { return u.Redis }),
			cpu(func(u loadtest.Usage) time.Duration { return u.Clients }), failed)
		b.ReportMetric(rate, "orders/s-"+m.name)
		if m.name != "pgbench" {
			b.ReportMetric(rate/base, "ratio-"+m.name)
			b.ReportMetric(loadtest.Median(p99), "p99-ms-"+m.name)
		}
	}
	testenv.Must(b, table.Flush())
	b.Logf("orders of one item; processor time for each order:\n%s", text.String())
}

func values(samples []sample, of func(sample) float64) (all []float64) {
	for _, s := range samples {
		all = append(all, of(s))
	}
	return all
}

// placeWithPgbench runs the statements that place an order with pgbench.
func placeWithPgbench(b *testing.B, s *loadtest.Site, clients, products int) sample {
	b.Helper()
	before := s.Usage()
	r, err := pgbench.Place(b.Context(), pgbench.Options{
		Database: s.Database, Module: "../..", Clients: clients, Products: products, For: *placeFor,
	})
	if errors.Is(err, pgbench.ErrMissing) {
		b.Skip(err)
	}
	testenv.Must(b, err)
	used := s.Usage().Since(before)
	used.Clients = r.CPU
	return sample{Rate: r.Rate, CPU: used.Each(r.Orders)}
}
