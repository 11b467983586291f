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

// BenchmarkAlone compares a service with Redis with one on PostgreSQL alone: how many orders per second it places, and
// how late it cancels them, at 200 orders/s and at the highest rate. The measurements of the two alternate.
func BenchmarkAlone(b *testing.B) {
	const rounds = 3
	modes := []struct{ name, redis string }{{"Redis", ""}, {"alone", faulttest.NoRedis}}
	for b.Loop() {
		var sites []*loadtest.Site
		for _, m := range modes {
			env := []string{envTimeout + "=15s"}
			if m.redis != "" {
				env = append(env, faulttest.EnvRedisURL+"="+m.redis)
			}
			sites = append(sites, loadtest.NewSite(b, orders, 1000, env...))
		}
		results := make([][]modeResult, len(modes))
		for range rounds {
			for i, s := range sites {
				results[i] = append(results[i], measureMode(b, s))
			}
		}
		var text strings.Builder
		table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(table,
			"\torders/s\tp99 ms\tCPU µs\tlate p50 ms\tp99 ms\tat most ms\tin a burst p50 ms\tp99 ms\tat most ms\t")
		for i, m := range modes {
			column := func(of func(modeResult) float64) float64 {
				var all []float64
				for _, r := range results[i] {
					all = append(all, of(r))
				}
				return loadtest.Median(all)
			}
			fmt.Fprint(table, m.name)
			for _, of := range []func(modeResult) float64{
				func(r modeResult) float64 { return r.placed.Rate }, func(r modeResult) float64 { return r.placed.P99 },
				func(r modeResult) float64 { return float64(r.placed.CPU.Total().Microseconds()) },
				func(r modeResult) float64 { return r.steady.p50 }, func(r modeResult) float64 { return r.steady.p99 },
				func(r modeResult) float64 { return r.steady.most },
				func(r modeResult) float64 { return r.burst.p50 }, func(r modeResult) float64 { return r.burst.p99 },
				func(r modeResult) float64 { return r.burst.most },
			} {
				fmt.Fprintf(table, "\t%.0f", column(of))
			}
			fmt.Fprintln(table, "\t")
			b.ReportMetric(column(func(r modeResult) float64 { return r.placed.Rate }), "orders/s-"+m.name)
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

func measureMode(b *testing.B, s *loadtest.Site) (r modeResult) {
	b.Helper()
	const lasting = 10 * time.Second
	r.steady = cancelled(b, s, func() {
		loadtest.OpenLoop(b, s.Addr(), 200, loadtest.Poisson(200, lasting, 1), lasting, s.Orders("", s.Products))
	})
	r.burst = cancelled(b, s, func() { r.placed = s.Place(32, *placeFor, s.Products) })
	return r
}

// cancelled places orders, waits until they are cancelled, and returns how late that was.
func cancelled(b *testing.B, s *loadtest.Site, place func()) (late delays) {
	b.Helper()
	began := testenv.Query[time.Time](b, s.DB, `SELECT clock_timestamp()`)
	place()
	s.AwaitEnds(faulttest.Patience)
	testenv.Must(b, s.DB.QueryRowContext(b.Context(), `
		SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY late), percentile_cont(0.99) WITHIN GROUP (ORDER BY late), max(late)
		FROM (SELECT (extract(epoch FROM cancelled_at - expires_at) * 1000)::float8 AS late
		      FROM orders WHERE created_at >= $1) AS orders`,
		began).Scan(&late.p50, &late.p99, &late.most))
	return late
}
