package e2e

import (
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"example.com/shop/e2e/loadtest"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
)

// BenchmarkAlone compares a service with Redis with one on PostgreSQL alone: how many orders per second it places, and how late it
// cancels them, at 200 orders/s and at the highest rate. The measurements of the two alternate.
func BenchmarkAlone(b *testing.B) {
	const rounds = 3
	modes := []struct{ name, redis string }{{"Redis", ""}, {"alone", faulttest.NoRedis}}
	for b.Loop() {
		var sites []*benchSite
		for _, m := range modes {
			env := []string{envTimeout + "=15s"}
			if m.redis != "" {
				env = append(env, faulttest.EnvRedisURL+"="+m.redis)
			}
			sites = append(sites, newBenchSite(b, 1000, env...))
		}
		results := make([][]modeResult, len(modes))
		for range rounds {
			for i, s := range sites {
				results[i] = append(results[i], s.measureMode())
			}
		}
		var text strings.Builder
		table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(table, "\torders/s\tp99 ms\tCPU µs\tlate p50 ms\tp99 ms\tat most ms\tin a burst p50 ms\tp99 ms\tat most ms\t")
		for i, m := range modes {
			column := func(of func(modeResult) float64) float64 {
				var all []float64
				for _, r := range results[i] {
					all = append(all, of(r))
				}
				return median(all)
			}
			fmt.Fprint(table, m.name)
			for _, of := range []func(modeResult) float64{
				func(r modeResult) float64 { return r.placed.rate }, func(r modeResult) float64 { return r.placed.p99 },
				func(r modeResult) float64 { return float64(r.placed.cpu.total().Microseconds()) },
				func(r modeResult) float64 { return r.steady.p50 }, func(r modeResult) float64 { return r.steady.p99 },
				func(r modeResult) float64 { return r.steady.most },
				func(r modeResult) float64 { return r.burst.p50 }, func(r modeResult) float64 { return r.burst.p99 },
				func(r modeResult) float64 { return r.burst.most },
			} {
				fmt.Fprintf(table, "\t%.0f", column(of))
			}
			fmt.Fprintln(table, "\t")
			b.ReportMetric(column(func(r modeResult) float64 { return r.placed.rate }), "orders/s-"+m.name)
			b.ReportMetric(column(func(r modeResult) float64 { return r.steady.p99 }), "late-p99-ms-"+m.name)
		}
		testenv.Must(b, table.Flush())
		b.Logf("medians of %d rounds:\n%s", rounds, text.String())
	}
}

// modeResult is the result of one round for a service with or without Redis.
type modeResult struct {
	placed sample
	steady delays // of orders that were placed at a steady rate
	burst  delays // of orders that were placed at the highest rate
}

// delays describes the times from deadlines to cancellations, in milliseconds.
type delays struct{ p50, p99, most float64 }

func (s *benchSite) measureMode() (r modeResult) {
	s.b.Helper()
	const lasting = 10 * time.Second
	r.steady = s.cancelled(func() {
		loadtest.OpenLoop(s.b, s.addr(), 200, loadtest.Poisson(200, lasting, 1), lasting, s.orders("", s.products))
	})
	r.burst = s.cancelled(func() { r.placed = s.placeOverHTTP(32, s.products) })
	return r
}

// cancelled places orders, waits until they are cancelled, and returns how late that was.
func (s *benchSite) cancelled(place func()) (late delays) {
	s.b.Helper()
	began := testenv.Query[time.Time](s.b, s.db, `SELECT clock_timestamp()`)
	place()
	s.awaitEnds(faulttest.Patience)
	testenv.Must(s.b, s.db.QueryRowContext(s.b.Context(), `
		SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY late), percentile_cont(0.99) WITHIN GROUP (ORDER BY late), max(late)
		FROM (SELECT (extract(epoch FROM cancelled_at - expires_at) * 1000)::float8 AS late FROM orders WHERE created_at >= $1) AS orders`,
		began).Scan(&late.p50, &late.p99, &late.most))
	return late
}
