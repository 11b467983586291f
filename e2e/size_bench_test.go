package e2e

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

var (
	sizeFor     = flag.Duration("size.for", time.Hour, "how long BenchmarkSize places orders")
	sizeRate    = flag.Int("size.rate", 500, "the orders that BenchmarkSize places in a second, on average")
	sizeTimeout = flag.Duration("size.timeout", 5*time.Minute, "the time to pay the orders of BenchmarkSize")
	sizeReport  = flag.String("size.report", "", "the file for the report of BenchmarkSize; without it the benchmark is skipped")
)

// BenchmarkSize places orders for an hour, lets all of them time out, and reports how many bytes each table and index has for an
// order: once as autovacuum leaves them, and once after a VACUUM.
func BenchmarkSize(b *testing.B) {
	if *sizeReport == "" {
		b.Skip("it takes an hour: run make bench-size")
	}
	const products = 1000
	for b.Loop() {
		s := newBenchSite(b, products, envTimeout+"="+sizeTimeout.String())
		r := openLoop(b, s.addr(), 200, poisson(float64(*sizeRate), *sizeFor, 1), *sizeFor, s.orders("size-", s.products))
		placed := r.count(is(http.StatusCreated))
		if placed == 0 || r.unsent > 0 {
			b.Fatalf("%d orders were placed by %d requests, and %d were not sent", placed, len(r.responses), r.unsent)
		}
		testenv.EventuallyWithin(b, *sizeTimeout+patience, "all orders are cancelled and booked", func() bool {
			return !testenv.Query[bool](b, s.db, `SELECT EXISTS (SELECT FROM orders WHERE status = 'pending') OR EXISTS (SELECT FROM orders WHERE NOT booked AND status <> 'pending')`)
		})
		before := s.sizes()
		_, err := s.db.ExecContext(b.Context(), `VACUUM`)
		testenv.Must(b, err)
		after := s.sizes()

		var report strings.Builder
		fmt.Fprintf(&report, `# Size

The benchmark places %d orders a second for %v, with an idempotency key and one item each. Their customers are %d, and their items are of
%d products. No order is paid. Each gets a reminder, which is its only row in order_events. It is cancelled after %v. The table shows the
bytes for each of the %d orders, as autovacuum leaves them and after a VACUUM. HOT is the share of the updates that changed no index.

- PostgreSQL %s, on a machine with %d processors
- Date: %s
- To repeat: make bench-size SIZE="-size.for=%[2]v -size.rate=%[1]d -size.timeout=%[5]v"

| relation | bytes an order | after VACUUM | updates an order | HOT |
| --- | ---: | ---: | ---: | ---: |
`, *sizeRate, *sizeFor, len(s.headers), products, *sizeTimeout, placed,
			testenv.Query[string](b, s.db, `SELECT split_part(current_setting('server_version'), ' ', 1)`), runtime.NumCPU(), time.Now().UTC().Format(time.DateOnly))
		var sum, sumAfter float64
		each := func(bytes int64) float64 { return float64(bytes) / float64(placed) }
		for i, r := range before {
			if max(r.bytes, after[i].bytes) < 32<<10 {
				continue
			}
			hot, updates := "", ""
			if r.updates > 0 {
				hot, updates = fmt.Sprintf("%.0f%%", 100*float64(r.hot)/float64(r.updates)), fmt.Sprintf("%.2f", each(r.updates))
			}
			sum, sumAfter = sum+each(r.bytes), sumAfter+each(after[i].bytes)
			fmt.Fprintf(&report, "| %s | %.1f | %.1f | %s | %s |\n", r.name, each(r.bytes), each(after[i].bytes), updates, hot)
		}
		fmt.Fprintf(&report, "| sum | %.0f | %.0f | | |\n", sum, sumAfter)
		testenv.Must(b, os.WriteFile(*sizeReport, []byte(report.String()), 0o644)) //nolint:gosec // a document
		b.Log(report.String())
	}
}

// relation is a table or an index.
type relation struct {
	name         string
	bytes        int64
	updates, hot int64 // of a table
}

// sizes returns the tables and indexes of the site, each table before its indexes. The size of a table includes its maps of free space
// and of visibility.
func (s *benchSite) sizes() (all []relation) {
	s.b.Helper()
	rows, err := s.db.QueryContext(s.b.Context(), `
		SELECT coalesce(t.relname || ': ' || c.relname, c.relname), pg_table_size(c.oid),
		       coalesce(pg_stat_get_tuples_updated(c.oid), 0), coalesce(pg_stat_get_tuples_hot_updated(c.oid), 0)
		FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid LEFT JOIN pg_class t ON t.oid = i.indrelid
		WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'i')
		ORDER BY coalesce(t.relname, c.relname), t.relname IS NOT NULL, c.relname`)
	testenv.Must(s.b, err)
	defer rows.Close()
	for rows.Next() {
		var r relation
		testenv.Must(s.b, rows.Scan(&r.name, &r.bytes, &r.updates, &r.hot))
		all = append(all, r)
	}
	testenv.Must(s.b, rows.Err())
	return all
}
