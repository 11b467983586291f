package service

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"example.com/shop/bench/loadtest"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
)

var (
	sizeFor     = flag.Duration("size.for", time.Hour, "how long BenchmarkSize places orders")
	sizeRate    = flag.Int("size.rate", 500, "the orders that BenchmarkSize places in a second, on average")
	sizeTimeout = flag.Duration("size.timeout", 5*time.Minute, "the time to pay the orders of BenchmarkSize")
	sizeReport  = flag.String("size.report", "",
		"the file for the report of BenchmarkSize; without it the benchmark is skipped")
)

// BenchmarkSize places orders for an hour, lets all of them time out, and reports how many bytes each table and index
// has for an order: once as autovacuum leaves them, and once after a VACUUM. It does so twice, the second time without
// the settings with which the migrations fight bloat.
func BenchmarkSize(b *testing.B) {
	if *sizeReport == "" {
		b.Skip("it takes two and a half hours: run make -C bench size")
	}
	for b.Loop() {
		report := sizeTable(b, measureSize(b, true), measureSize(b, false))
		testenv.Must(b, os.WriteFile(*sizeReport, []byte(report), 0o644)) //nolint:gosec // a document
		b.Log(report)
	}
}

const sizeProducts = 1000

// resetStorage removes the settings of all tables and indexes.
const resetStorage = `DO $$
	DECLARE r record;
	BEGIN
		FOR r IN SELECT c.oid::regclass AS name, c.relkind = 'i' AS is_index,
		                (SELECT string_agg(split_part(o, '=', 1), ', ') FROM unnest(c.reloptions) AS o) AS options
		         FROM pg_class c WHERE c.relnamespace = 'public'::regnamespace AND c.reloptions IS NOT NULL AND c.relkind IN ('r', 'i')
		LOOP
			EXECUTE format('ALTER %s %s RESET (%s)', CASE WHEN r.is_index THEN 'INDEX' ELSE 'TABLE' END, r.name, r.options);
		END LOOP;
	END $$`

// sizes are the relations of a site after a number of orders.
type sizes struct {
	orders, customers int
	version           string     // of PostgreSQL
	bloated, vacuumed []relation // as autovacuum leaves them, and after a VACUUM
}

// measureSize places orders at a new site, and lets all of them time out. withSettings tells whether its tables have
// the settings with which the migrations fight bloat.
func measureSize(b *testing.B, withSettings bool) sizes {
	b.Helper()
	s := loadtest.NewSite(b, orders, sizeProducts, orders.TimeoutVariable()+"="+sizeTimeout.String())
	defer s.Process.Interrupt()
	if !withSettings {
		testenv.Exec(b, s.DB, resetStorage)
		testenv.Exec(b, s.DB, `VACUUM FULL products`) // its rows are older
	}
	arrivals := loadtest.Poisson(float64(*sizeRate), *sizeFor, 1)
	r := loadtest.OpenLoop(b, s.Addr(), 200, arrivals, *sizeFor, s.Orders("size-", s.Products))
	placed := r.Count(loadtest.Is(http.StatusCreated))
	if placed == 0 || r.Unsent > 0 {
		b.Fatalf("%d orders were placed by %d requests, and %d were not sent", placed, len(r.Responses), r.Unsent)
	}
	s.AwaitEnds(*sizeTimeout + faulttest.Patience)
	measured := sizes{
		orders: placed, customers: loadtest.Customers, version: serverVersion(b, s.DB), bloated: sizesOf(s),
	}
	testenv.Exec(b, s.DB, `VACUUM`)
	measured.vacuumed = sizesOf(s)
	return measured
}

// sizeTable returns the document with the sizes, with and without the settings.
func sizeTable(b *testing.B, set, plain sizes) string {
	b.Helper()
	var report strings.Builder
	fmt.Fprintf(&report, `# Size

The benchmark places %d orders a second for %v, with an idempotency key and one item each. Their customers are
%d, and their items are of %d products. No order is paid. Each gets a reminder, which is its only row in
order_events. It is cancelled after %v. The table shows the bytes for each of the %d orders, as autovacuum
leaves them and after a VACUUM. HOT is the share of the updates that changed no index. The last two columns are of a
second site, without the settings with which the migrations fight bloat: fill factors, and thresholds of autovacuum.

- PostgreSQL %s, on a machine with %d processors
- Date: %s
- To repeat: make -C bench size SIZE="-size.for=%[2]v -size.rate=%[1]d -size.timeout=%[5]v"

| relation | bytes an order | after VACUUM | updates an order | HOT | without settings: bytes an order | HOT |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
`, *sizeRate, *sizeFor, set.customers, sizeProducts, *sizeTimeout, set.orders, set.version, runtime.NumCPU(),
		time.Now().UTC().Format(time.DateOnly))
	var sum, sumVacuumed, sumPlain float64
	each := func(s sizes, bytes int64) float64 { return float64(bytes) / float64(s.orders) }
	for i, r := range set.bloated {
		vacuumed, other := each(set, set.vacuumed[i].bytes), plain.bloated[i]
		if other.name != r.name {
			b.Fatalf("the sites have the relations %s and %s, want the same", r.name, other.name)
		}
		if max(r.bytes, set.vacuumed[i].bytes, other.bytes) < 32<<10 {
			continue
		}
		updates := ""
		if r.updates > 0 {
			updates = fmt.Sprintf("%.2f", each(set, r.updates))
		}
		sum, sumVacuumed, sumPlain = sum+each(set, r.bytes), sumVacuumed+vacuumed, sumPlain+each(plain, other.bytes)
		fmt.Fprintf(&report, "| %s | %.1f | %.1f | %s | %s | %.1f | %s |\n", r.name, each(set, r.bytes), vacuumed, updates, r.hotShare(),
			each(plain, other.bytes), other.hotShare())
	}
	fmt.Fprintf(&report, "| sum | %.0f | %.0f | | | %.0f | |\n", sum, sumVacuumed, sumPlain)
	return report.String()
}

// relation is a table or an index.
type relation struct {
	name         string
	bytes        int64
	updates, hot int64 // of a table
}

// hotShare returns the share of the updates that changed no index, or "" if there was no update.
func (r relation) hotShare() string {
	if r.updates == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f%%", 100*float64(r.hot)/float64(r.updates))
}

// sizesOf returns the tables and indexes of the site, each table before its indexes. The size of a table includes its
// maps of free space and of visibility.
func sizesOf(s *loadtest.Site) (all []relation) {
	s.T.Helper()
	rows, err := s.DB.QueryContext(s.T.Context(), `
		SELECT coalesce(t.relname || ': ' || c.relname, c.relname), pg_table_size(c.oid),
		       coalesce(pg_stat_get_tuples_updated(c.oid), 0), coalesce(pg_stat_get_tuples_hot_updated(c.oid), 0)
		FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid LEFT JOIN pg_class t ON t.oid = i.indrelid
		WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'i')
		ORDER BY coalesce(t.relname, c.relname), t.relname IS NOT NULL, c.relname`)
	testenv.Must(s.T, err)
	defer rows.Close()
	for rows.Next() {
		var r relation
		testenv.Must(s.T, rows.Scan(&r.name, &r.bytes, &r.updates, &r.hot))
		all = append(all, r)
	}
	testenv.Must(s.T, rows.Err())
	return all
}
