package service

import (
	"database/sql"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/bench/loadtest"
	"example.com/shop/internal/devstack"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
)

var (
	growthEnded = flag.String("growth.ended", "100000,1000000,10000000",
		"the numbers of ended orders of the sites of BenchmarkGrowth")
	growthPending = flag.Int("growth.pending", 1_000_000,
		"the number of pending orders in the second part of BenchmarkGrowth")
	growthRounds = flag.Int("growth.rounds", 5,
		"how often BenchmarkGrowth measures each figure")
	growthSnapshot = flag.Duration("growth.snapshot", 2*time.Minute,
		"how long BenchmarkGrowth keeps a snapshot open")
	growthDir = flag.String("growth.dir", "",
		"the directory for the data of BenchmarkGrowth, on a disk; some 3 kB for each ended order")
	placeFor = flag.Duration("place.for", 3500*time.Millisecond,
		"how long each measurement of placements takes")
	growthReport = flag.String("growth.report", "",
		"the file for the report of BenchmarkGrowth; without it the benchmark is skipped")
)

var (
	//go:embed testdata/growth_ended.sql
	growthEndedSQL string
	//go:embed testdata/growth_pending.sql
	growthPendingSQL string
)

const (
	growthProducts = 1000
	growthBasis    = 100_000 // pending orders in the first part, at each site
	growthBurst    = 10_000  // orders that are due at the same time
	growthSpread   = 1_000   // orders that are due one after the other
	growthRate     = 200     // of these, in orders a second

	growthCustomers = 5_000 // customers who want a piece of the flash sale
	growthPieces    = 100   // of its product

	growthPatience = 20 * time.Minute // for tasks
)

// BenchmarkGrowth measures sites that differ in the number of their ended orders, and then in that of their pending
// orders. All are databases of one server, each with a Redis and a process of its own, and each figure is measured at
// all sites in turn.
//
// The first orders of a site are inserted at once, so their tables are as compact as after a vacuum.
func BenchmarkGrowth(b *testing.B) {
	if *growthReport == "" {
		b.Skip("it takes up to two hours: run make -C bench growth")
	}
	g := newGrowth(b)
	for b.Loop() {
		g.measureAll("100 thousand pending orders")
		g.addPending(*growthPending - growthBasis)
		g.measureAll(fmt.Sprintf("%d pending orders", *growthPending))
		g.measureSnapshot()
		g.reportPages()
		g.measureAudit()
		g.reportPlans()
		g.write()
		b.Log(g.report.String())
	}
}

// growth is the sites of BenchmarkGrowth and what was measured there.
type growth struct {
	b      *testing.B
	server *devstack.Postgres
	db     *sql.DB // the server's own database
	sites  []*growthSite
	report strings.Builder
}

// growthSite is a site with a number of ended orders.
type growthSite struct {
	*loadtest.Site
	b     *testing.B
	name  string // of the database
	ended int
	many  *faulttest.Client // the customer with a hundredth of the ended orders
	few   *faulttest.Client // a customer with fifty orders
}

func newGrowth(b *testing.B) *growth {
	b.Helper()
	dir, err := os.MkdirTemp(*growthDir, "growth-")
	testenv.Must(b, err)
	testenv.Must(b, os.Chmod(dir, 0o755))
	b.Cleanup(func() { testenv.Must(b, os.RemoveAll(dir)) })
	data := filepath.Join(dir, "postgres")
	testenv.Must(b, os.Mkdir(data, 0o700))
	server, err := devstack.StartPostgres(b.Context(), data, map[string]string{
		"max_connections": "300", "shared_buffers": "2GB", "max_wal_size": "8GB", "maintenance_work_mem": "512MB",
		"shared_preload_libraries": "pg_stat_statements,auto_explain", "track_io_timing": "on",
		"log_line_prefix": "%d ",
	})
	testenv.Must(b, err)
	b.Cleanup(func() {
		if err := server.Stop(); err != nil {
			b.Error(err)
		}
	})
	g := &growth{b: b, server: server, db: faulttest.OpenDatabase(b, server.URL())}
	g.begin()
	for _, text := range strings.Split(*growthEnded, ",") {
		ended, err := strconv.Atoi(text)
		testenv.Must(b, err)
		g.sites = append(g.sites, g.newSite(ended))
	}
	return g
}

// begin begins the report.
func (g *growth) begin() {
	g.b.Helper()
	fmt.Fprintf(&g.report, `# Growth

The benchmark compares sites of one PostgreSQL server that differ in the number of their ended orders. Each has a
Redis and a process with all roles. A figure is the median of %d rounds (audit: 1), with the least and the
greatest value in parentheses. In each round the sites take turns. The last column is the figure of the site with the
most orders, divided by that of the site with the fewest.

The command doctor begins new sessions. A new session of PostgreSQL maps each page of the shared buffers that it
reads, which can take longer than to read the page. The process that serves the operators' page has sessions that
have done it before.

- Machine: %d processors, shared by PostgreSQL, Redis, the service and the clients
- PostgreSQL %s, on a disk with fsync; shared_buffers=2GB max_wal_size=8GB
- Orders placed by the benchmark have one item of one of %d products; of the ended orders, 40%% are paid. There are
  no payments at a provider
- Date: %s
- To repeat: make -C bench growth GROWTH_DIR=…
`, *growthRounds, runtime.NumCPU(), serverVersion(g.b, g.db), growthProducts,
		time.Now().UTC().Format(time.DateOnly))
}

// newSite makes a site with a number of ended orders.
func (g *growth) newSite(ended int) *growthSite {
	g.b.Helper()
	name := fmt.Sprint("ended_", ended)
	_, err := g.db.ExecContext(g.b.Context(), "CREATE DATABASE "+name)
	testenv.Must(g.b, err)
	servers := loadtest.Servers{
		Postgres: g.server,
		Database: strings.Replace(g.server.URL(), "/postgres?", "/"+name+"?", 1),
		Redis:    testenv.RedisServer(g.b),
	}
	s := &growthSite{
		Site: loadtest.NewSiteAt(g.b, orders, servers, growthProducts, growthCustomers),
		b:    g.b, name: name, ended: ended,
	}
	s.exec(`CREATE EXTENSION pg_stat_statements`)
	s.many, s.few = s.Process.SignUp(), s.Process.SignUp()
	s.fill()
	s.addPending(growthBasis)
	return s
}

func (s *growthSite) exec(statement string, args ...any) {
	s.b.Helper()
	testenv.Exec(s.b, s.DB, statement, args...)
}

// fill inserts the ended orders.
func (s *growthSite) fill() {
	s.b.Helper()
	began := time.Now()
	conn, err := s.DB.Conn(s.b.Context())
	testenv.Must(s.b, err)
	defer conn.Close()
	exec := func(statement string, args ...any) {
		s.b.Helper()
		_, err := conn.ExecContext(s.b.Context(), statement, args...)
		testenv.Must(s.b, err)
	}
	exec(`SET session_replication_role = replica`) // checks no foreign keys
	exec(`SET synchronous_commit = off`)
	const chunk = 100_000
	for n := 0; n < s.ended; n += chunk {
		exec(growthEndedSQL, n+1, min(n+chunk, s.ended), s.ended, subject(s.b, s.many), subject(s.b, s.few))
		if n%1_000_000 == 0 {
			progress("%d of %d orders after %v", n, s.ended, time.Since(began).Round(time.Second))
		}
	}
	exec(`VACUUM (ANALYZE)`)
	exec(`CHECKPOINT`)
}

// progress writes a line at once. A benchmark writes its log at its end.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// subject returns the id of a customer, from the customer's token.
func subject(b *testing.B, c *faulttest.Client) string {
	b.Helper()
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(c.Token, ".")[1])
	testenv.Must(b, err)
	var claims struct{ Sub string }
	testenv.Must(b, json.Unmarshal(payload, &claims))
	return claims.Sub
}

// addPending inserts pending orders that are due in a day or later, and waits until Redis has their tasks.
func (s *growthSite) addPending(n int) {
	s.b.Helper()
	s.addPendingIn(n, 24*time.Hour)
}

// addPendingIn is [growthSite.addPending] for orders that are due in the given time or later.
func (s *growthSite) addPendingIn(n int, due time.Duration) {
	s.b.Helper()
	const chunk = 50_000
	for inserted := 0; inserted < n; inserted += chunk {
		s.exec(growthPendingSQL, min(chunk, n-inserted), due.Seconds(), 0.1, uuid.New())
	}
	testenv.EventuallyWithin(s.b, growthPatience, "Redis has the tasks", func() bool {
		return !testenv.Query[bool](s.b, s.DB, `SELECT EXISTS (SELECT FROM outbox)`)
	})
	s.exec(`VACUUM (ANALYZE)`)
	s.exec(`CHECKPOINT`)
}

func (g *growth) addPending(n int) {
	g.b.Helper()
	for _, s := range g.sites {
		s.addPending(n)
		progress("%d ended: %d pending orders more", s.ended, n)
	}
}

// growthFigure is a figure of a site.
type growthFigure struct {
	name    string
	format  string
	measure func(s *growthSite) float64
}

// measureAll measures all figures at all sites in turn, and adds a table to the report.
func (g *growth) measureAll(title string) {
	g.b.Helper()
	g.table(title, *growthRounds, growthFigures())
}

// growthFigures returns what is measured with each number of pending orders.
func growthFigures() []growthFigure {
	var spread lateness
	return []growthFigure{
		{"placing, 32 clients, orders/s", "%.0f", (*growthSite).placingRate},
		{fmt.Sprintf("%d orders due at once, orders/s", growthBurst), "%.0f", func(s *growthSite) float64 {
			return growthBurst / s.timeOut(growthBurst, 0).last.Seconds()
		}},
		{fmt.Sprintf("lateness at %d orders/s, p50 ms", growthRate), "%.1f", func(s *growthSite) float64 {
			spread = s.timeOut(growthSpread, 1.0/growthRate)
			return loadtest.Milliseconds(spread.p50)
		}},
		{"p99 ms", "%.1f", func(*growthSite) float64 { return loadtest.Milliseconds(spread.p99) }},
		{fmt.Sprintf("flash sale: %d pieces, %d customers at once, s", growthPieces, growthCustomers), "%.2f", (*growthSite).flashSale},
		{"sweep, ms", "%.1f", (*growthSite).sweep},
		{"list of a customer with fifty orders, ms", "%.2f", func(s *growthSite) float64 { return s.get(s.few, "/api/orders") }},
		{"list of the customer with a hundredth of all, ms", "%.2f", func(s *growthSite) float64 { return s.get(s.many, "/api/orders") }},
		{"figures of the operators' page, ms", "%.1f", func(s *growthSite) float64 { return s.get(s.Process.Operator(), "/ops/api/stats") }},
		{"the oldest check of the invariants that the page shows, s", "%.1f", (*growthSite).oldestCheck},
		{"doctor, ms", "%.0f", func(s *growthSite) float64 { return took(func() { s.Run(s.b, "doctor") }) }},
	}
}

// placingRate returns how many orders a second 32 clients place.
func (s *growthSite) placingRate() float64 {
	s.b.Helper()
	return s.Place(32, *placeFor, s.Products).Rate
}

// measureAudit measures the check of every order against the books.
func (g *growth) measureAudit() {
	g.b.Helper()
	g.table("Audit", 1, []growthFigure{
		{"doctor --full, s", "%.1f", func(s *growthSite) float64 { return took(func() { s.Run(s.b, "doctor", "--full") }) / 1000 }},
	})
}

// table measures figures in rounds, each at all sites in turn, and adds a table of the medians to the report.
func (g *growth) table(title string, rounds int, figures []growthFigure) {
	g.b.Helper()
	samples := make([][][]float64, len(figures)) // by figure and site
	for i := range samples {
		samples[i] = make([][]float64, len(g.sites))
	}
	for round := range rounds {
		for i := range g.sites { // each round begins with another site
			at := (round + i) % len(g.sites)
			g.sites[at].AwaitRelay()
			for f, figure := range figures {
				samples[f][at] = append(samples[f][at], figure.measure(g.sites[at]))
				progress("%s, round %d, %d ended, %s: "+figure.format,
					title, round+1, g.sites[at].ended, figure.name, samples[f][at][round])
			}
		}
	}
	fmt.Fprintf(&g.report, "\n## %s\n\n|", title)
	for _, s := range g.sites {
		fmt.Fprintf(&g.report, " | %d ended", s.ended)
	}
	fmt.Fprintf(&g.report, " | last / first |\n| ---%s |\n", strings.Repeat(" | ---:", len(g.sites)+1))
	for f, figure := range figures {
		fmt.Fprintf(&g.report, "| %s", figure.name)
		for i := range g.sites {
			fmt.Fprintf(&g.report, " | %s", loadtest.Spread(samples[f][i], figure.format))
		}
		last, first := samples[f][len(g.sites)-1], samples[f][0]
		fmt.Fprintf(&g.report, " | %.2f |\n", loadtest.Median(last)/loadtest.Median(first))
	}
	g.write()
}

// lateness is how late the orders of a batch were cancelled.
type lateness struct{ p50, p99, last time.Duration }

// timeOut inserts orders whose deadlines are the interval apart, in seconds, and waits until all are cancelled.
func (s *growthSite) timeOut(n int, interval float64) (l lateness) {
	s.b.Helper()
	batch := uuid.New()
	s.exec(growthPendingSQL, n, 4, interval, batch)
	faulttest.Eventually(s.b, "the orders are cancelled", func() bool {
		return !testenv.Query[bool](s.b, s.DB,
			`SELECT EXISTS (SELECT FROM orders WHERE customer_id = $1 AND status = 'pending')`, batch)
	})
	var p50, p99, last float64
	testenv.Must(s.b, s.DB.QueryRowContext(s.b.Context(), `
		SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY late),
		       percentile_cont(0.99) WITHIN GROUP (ORDER BY late), max(late)
		FROM (SELECT extract(epoch FROM cancelled_at - expires_at) AS late FROM orders WHERE customer_id = $1) AS o`,
		batch).Scan(&p50, &p99, &last))
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	return lateness{seconds(p50), seconds(p99), seconds(last)}
}

// flashSale sells a product of which there are few pieces to customers who all order at once. It returns the time until
// the last customer has an answer, in seconds. Exactly all pieces must be sold.
func (s *growthSite) flashSale() float64 {
	s.b.Helper()
	product := uuid.NewString()
	s.exec(`INSERT INTO products (id, name, price_cents, currency, supply, available)
		VALUES ($1, 'flash sale', 100, 'EUR', $2, $2)`, product, growthPieces)
	arrivals := make([]time.Duration, growthCustomers)
	r := loadtest.OpenLoop(s.b, s.Addr(), 500, arrivals, time.Minute, s.Orders("", []string{product}))
	sold, out := r.Count(loadtest.Is(http.StatusCreated)), r.Count(loadtest.Is(http.StatusConflict))
	if sold != growthPieces || sold+out != growthCustomers {
		s.b.Fatalf("%d pieces were sold and %d orders rejected, want %d and all others", sold, out, growthPieces)
	}
	var last time.Duration
	for _, response := range r.Responses {
		last = max(last, response.Ended)
	}
	return last.Seconds()
}

// sweep returns how long a sweep takes, in milliseconds.
func (s *growthSite) sweep() float64 {
	s.b.Helper()
	type report struct {
		Took float64 `json:"took_seconds"`
	}
	return 1000 * faulttest.Decode[report](s.b, s.Process.Operator().Post(http.StatusOK, "/ops/api/reconcile")).Took
}

// get returns the median time of some requests, in milliseconds.
func (s *growthSite) get(c *faulttest.Client, path string) float64 {
	s.b.Helper()
	var all []float64
	for range 9 {
		answer := c.Expect(http.StatusOK, faulttest.Request{Method: http.MethodGet, Path: path})
		all = append(all, loadtest.Milliseconds(answer.Took))
	}
	return loadtest.Median(all)
}

// oldestCheck reads the figures of the operators' page until it has shown the result of a check of the invariants from
// its end to that of the next check. It returns the greatest age of a shown result, in seconds.
func (s *growthSite) oldestCheck() float64 {
	s.b.Helper()
	type stats struct {
		CheckedAt time.Time `json:"invariants_checked_at"`
	}
	operator := s.Process.Operator()
	var oldest time.Duration
	var last time.Time
	// The first result may be that of a check long ago.
	for began, results := time.Now(), 0; results < 3; <-time.After(100 * time.Millisecond) {
		if time.Since(began) > growthPatience {
			s.b.Fatalf("the page has shown no new results of the invariants for %v", growthPatience)
		}
		at := faulttest.Decode[stats](s.b, operator.Get("/ops/api/stats")).CheckedAt
		if !at.Equal(last) {
			results++
		}
		if results == 2 {
			oldest = max(oldest, time.Since(at))
		}
		last = at
	}
	return oldest.Seconds()
}

// took returns how long do takes, in milliseconds.
func took(do func()) float64 {
	began := time.Now()
	do()
	return loadtest.Milliseconds(time.Since(began))
}

// measureSnapshot measures the sites while a session has had a snapshot open for two minutes, in which PostgreSQL
// cannot vacuum.
func (g *growth) measureSnapshot() {
	g.b.Helper()
	fmt.Fprintf(&g.report, "\n## A snapshot that is open for %v\n\n"+
		"| ended orders | placing, the first three times, orders/s | the last three "+
		"| lateness, p99 ms | outbox empty after the placing, ms |\n"+
		"| ---: | ---: | ---: | ---: | ---: |\n", *growthSnapshot)
	for _, s := range []*growthSite{g.sites[0], g.sites[len(g.sites)-1]} {
		tx, err := s.DB.BeginTx(g.b.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true})
		testenv.Must(g.b, err)
		_, err = tx.ExecContext(g.b.Context(), `SET idle_in_transaction_session_timeout = 0`)
		testenv.Must(g.b, err)
		var n int
		testenv.Must(g.b, tx.QueryRowContext(g.b.Context(), `SELECT count(*) FROM products`).Scan(&n))
		began := time.Now()
		var rates, p99, outbox []float64
		for time.Since(began) < *growthSnapshot {
			rates = append(rates, s.placingRate())
			outbox = append(outbox, took(s.AwaitRelay))
			p99 = append(p99, loadtest.Milliseconds(s.timeOut(growthSpread, 1.0/growthRate).p99))
			progress("%d ended, a snapshot open for %v: placing %.0f orders/s, outbox empty after %.0f ms, p99 %.1f ms",
				s.ended, time.Since(began).Round(time.Second), rates[len(rates)-1], outbox[len(outbox)-1], p99[len(p99)-1])
		}
		few := min(3, len(rates))
		fmt.Fprintf(&g.report, "| %d | %s | %s | %s | %s |\n", s.ended,
			loadtest.Spread(rates[:few], "%.0f"), loadtest.Spread(rates[len(rates)-few:], "%.0f"),
			loadtest.Spread(p99, "%.1f"), loadtest.Spread(outbox, "%.0f"))
		testenv.Must(g.b, tx.Rollback())
	}
}

// reportPages reports how many pages each call of a statement reads. A statement that reads a table would read more
// pages at the site with more orders.
func (g *growth) reportPages() {
	g.b.Helper()
	last := g.sites[len(g.sites)-1]
	fmt.Fprintf(&g.report, "\n## Pages read by each call, with %d and %d ended orders\n\n"+
		"| statement | calls | first | last |\n| --- | ---: | ---: | ---: |\n", g.sites[0].ended, last.ended)
	pages := func(s *growthSite) (names []string, each map[string][2]float64) {
		rows, err := s.DB.QueryContext(g.b.Context(), `
			SELECT left(regexp_replace(query, E'\\s+', ' ', 'g'), 90), sum(calls),
			       sum(shared_blks_hit + shared_blks_read) / sum(calls)
			FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
			AND query LIKE '-- %' AND query NOT LIKE '-- Inserts %' GROUP BY 1 HAVING sum(calls) > 10 ORDER BY 2 DESC`)
		testenv.Must(g.b, err)
		defer rows.Close()
		each = make(map[string][2]float64)
		for rows.Next() {
			var name string
			var calls, blocks float64
			testenv.Must(g.b, rows.Scan(&name, &calls, &blocks))
			names, each[name] = append(names, name), [2]float64{calls, blocks}
		}
		testenv.Must(g.b, rows.Err())
		return names, each
	}
	_, first := pages(g.sites[0])
	names, each := pages(last)
	for _, name := range names {
		fmt.Fprintf(&g.report, "| %s | %.0f | %.0f | %.0f |\n",
			strings.TrimPrefix(name, "-- "), each[name][0], first[name][1], each[name][1])
	}
}

// reportPlans measures all figures once more at the site with the most orders, while PostgreSQL logs the plan of each
// statement. It reports the tables that plans scan sequentially.
func (g *growth) reportPlans() {
	g.b.Helper()
	s := g.sites[len(g.sites)-1]
	before, err := g.server.Log()
	testenv.Must(g.b, err)
	s.exec(`ALTER SYSTEM SET auto_explain.log_min_duration = 0`)
	s.exec(`SELECT pg_reload_conf()`)
	for _, figure := range growthFigures() {
		figure.measure(s)
	}
	s.exec(`ALTER SYSTEM RESET auto_explain.log_min_duration`)
	s.exec(`SELECT pg_reload_conf()`)
	log, err := g.server.Log()
	testenv.Must(g.b, err)
	plans := plansOf(log[len(before):], s.name)
	fmt.Fprintf(&g.report, `
## Plans with %d ended orders

PostgreSQL logged the plans of the service's statements while the figures were measured once more. The last column
has the tables that a plan of the statement scans sequentially. If orders, their items or their events were among
them, the benchmark would fail.

| statement | plans | scanned sequentially |
| --- | ---: | --- |
`, s.ended)
	for _, name := range slices.Sorted(maps.Keys(plans)) {
		p := plans[name]
		fmt.Fprintf(&g.report, "| %s | %d | %s |\n", name, p.number, strings.Join(slices.Sorted(maps.Keys(p.scanned)), ", "))
		for _, table := range []string{"orders", "order_items", "order_events"} {
			if p.scanned[table] {
				g.b.Errorf("a plan of %q scans the table %s sequentially", name, table)
			}
		}
	}
}

// statementPlans are the plans of a statement.
type statementPlans struct {
	number  int
	scanned map[string]bool // the tables that one of the plans scans sequentially
}

var (
	loggedPlan = regexp.MustCompile(`(?m)^(\S+) LOG:  duration: .* plan:\n((?:\t.*\n)+)`) // after the name of the database
	seqScan    = regexp.MustCompile(`Seq Scan on (\w+)`)
)

// plansOf returns the logged plans of a database's statements that begin with a comment, by the first 90 bytes of the
// comment. The service's larger statements have one.
func plansOf(log, database string) map[string]*statementPlans {
	plans := make(map[string]*statementPlans)
	for _, logged := range loggedPlan.FindAllStringSubmatch(log, -1) {
		comment, found := strings.CutPrefix(logged[2], "\tQuery Text: -- ")
		if !found || logged[1] != database || strings.HasPrefix(comment, "Inserts ") { // the benchmark inserts orders
			continue
		}
		name, _, _ := strings.Cut(comment, "\n")
		name = name[:min(len(name), 90)]
		if plans[name] == nil {
			plans[name] = &statementPlans{scanned: make(map[string]bool)}
		}
		plans[name].number++
		for _, scan := range seqScan.FindAllStringSubmatch(logged[2], -1) {
			plans[name].scanned[scan[1]] = true
		}
	}
	return plans
}

// TestPlansOf reads a log.
func TestPlansOf(t *testing.T) {
	const log = " LOG:  database system is ready\n" +
		"a LOG:  duration: 0.1 ms  plan:\n\tQuery Text: -- Locks products.\n\tSELECT\n\tSeq Scan on products  (cost=0..1)\n" +
		"a LOG:  duration: 0.2 ms  plan:\n\tQuery Text: -- Locks products.\n\tSELECT\n\tIndex Scan using products_pkey on products\n" +
		"a LOG:  duration: 0.3 ms  plan:\n\tQuery Text: SELECT 1\n\tSeq Scan on orders\n" +
		"b LOG:  duration: 0.4 ms  plan:\n\tQuery Text: -- Locks products.\n\tSELECT\n\tSeq Scan on customers\n" +
		" LOG:  checkpoint starting\n"
	plans := plansOf(log, "a")
	if p := plans["Locks products."]; len(plans) != 1 || p == nil || p.number != 2 || !maps.Equal(p.scanned, map[string]bool{"products": true}) {
		t.Errorf("the plans are %+v, want two of one statement, one of which scans the products", plans)
	}
}

// write writes the report as far as it goes, so that an interrupted benchmark leaves a report too.
func (g *growth) write() {
	g.b.Helper()
	testenv.Must(g.b, os.WriteFile(*growthReport, []byte(g.report.String()), 0o644)) //nolint:gosec // a document
}

// serverVersion returns the version of PostgreSQL.
func serverVersion(b *testing.B, db *sql.DB) string {
	b.Helper()
	return testenv.Query[string](b, db, `SELECT split_part(current_setting('server_version'), ' ', 1)`)
}
