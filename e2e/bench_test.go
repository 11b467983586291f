package e2e

import (
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"example.com/shop/e2e/loadtest"
	"example.com/shop/internal/devstack"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/pgbench"
	"example.com/shop/internal/testenv"
)

var placeFor = flag.Duration("place.for", 3500*time.Millisecond, "how long each of the measurements of BenchmarkPlace takes")

// BenchmarkPlace places orders of one item over HTTP, with 1, 32 and 512 clients, for 1,000 products and for one
// product. For comparison, pgbench runs the statement of the service with 16 clients for 50 products on the same
// server. PostgreSQL syncs to disk, as in production.
//
// The measurements are repeated in rounds, because the speed of a machine changes from one minute to the next. The
// table shows the median of the rounds, and in parentheses the least and the greatest value.
func BenchmarkPlace(b *testing.B) {
	const rounds = 5
	s := newBenchSite(b, 1000)
	measurements := []measurement{{"pgbench", func() sample { return s.placeWithPgbench(16, 50) }}}
	for _, clients := range []int{1, 32, 512} {
		measurements = append(measurements,
			measurement{fmt.Sprint(clients, "-spread"), func() sample { return s.placeOverHTTP(clients, s.products) }},
			measurement{fmt.Sprint(clients, "-hot"), func() sample { return s.placeOverHTTP(clients, s.products[:1]) }})
	}
	for b.Loop() {
		loadtest.ClosedLoop(b, s.addr(), 32, *placeFor, s.orders("", s.products)) // fills the pools and caches
		samples := map[string][]sample{}
		for round := range rounds {
			for i := range measurements { // each round begins with another measurement
				m := measurements[(round+i)%len(measurements)]
				s.waitForRelay()
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
type sample struct {
	rate     float64 // orders per second
	p50, p99 float64 // of the latency, in milliseconds; 0: unknown
	failed   int     // responses that were not 201
	cpu      usage   // for each order
}

func reportPlacements(b *testing.B, measurements []measurement, samples map[string][]sample) {
	b.Helper()
	rates := func(name string) []float64 { return values(samples[name], func(s sample) float64 { return s.rate }) }
	base := median(rates("pgbench"))
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "\torders/s\t/ pgbench\thot / spread\tp50 ms\tp99 ms\tservice µs\tPostgreSQL µs\tRedis µs\tclients µs\tfailed\t")
	for _, m := range measurements {
		all := samples[m.name]
		column := func(of func(sample) float64) []float64 { return values(all, of) }
		cpu := func(of func(usage) time.Duration) string {
			return fmt.Sprintf("%.0f", median(column(func(s sample) float64 { return float64(of(s.cpu).Microseconds()) })))
		}
		p50, p99 := column(func(s sample) float64 { return s.p50 }), column(func(s sample) float64 { return s.p99 })
		rate, hot, failed := median(rates(m.name)), "", 0
		if clients, found := strings.CutSuffix(m.name, "-hot"); found {
			ratio := rate / median(rates(clients+"-spread"))
			hot = fmt.Sprintf("%.2f", ratio)
			b.ReportMetric(ratio, "hot/spread-"+clients)
		}
		for _, s := range all {
			failed += s.failed
		}
		fmt.Fprintf(table, "%s\t%s\t%.2f\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t\n",
			m.name, spread(rates(m.name), "%.0f"), rate/base, hot, spread(p50, "%.2f"), spread(p99, "%.2f"),
			cpu(func(u usage) time.Duration { return u.service }), cpu(func(u usage) time.Duration { return u.postgres }),
			cpu(func(u usage) time.Duration { return u.redis }), cpu(func(u usage) time.Duration { return u.clients }), failed)
		b.ReportMetric(rate, "orders/s-"+m.name)
		if m.name != "pgbench" {
			b.ReportMetric(rate/base, "ratio-"+m.name)
			b.ReportMetric(median(p99), "p99-ms-"+m.name)
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

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// spread returns the median, the least and the greatest of the values. 0 means that a value is unknown.
func spread(values []float64, format string) string {
	if slices.Max(values) == 0 {
		return "–"
	}
	return fmt.Sprintf(format+" ("+format+"–"+format+")", median(values), slices.Min(values), slices.Max(values))
}

// benchSite is a site with servers and a process of its own, for benchmarks of placements.
type benchSite struct {
	*faulttest.Site
	b        *testing.B
	postgres *devstack.Postgres
	cache    *devstack.Redis
	process  *faulttest.Process
	db       *sql.DB
	products []string
	headers  [][]byte // of the requests of each customer that place an order, without the empty line
}

// newBenchSite starts the servers and the service, adds products, and signs up 2,000 customers. It adds env to the
// environment of the service, which does not limit how much a customer may order: 2,000 customers would soon reach the
// limits.
func newBenchSite(b *testing.B, products int, env ...string) *benchSite {
	b.Helper()
	dir, err := testenv.TempDir()
	testenv.Must(b, err)
	data, err := os.MkdirTemp(dir, "synced-postgres-")
	testenv.Must(b, err)
	postgres, err := devstack.StartPostgres(b.Context(), data, map[string]string{"max_connections": "200"})
	testenv.Must(b, err)
	b.Cleanup(func() {
		if err := postgres.Stop(); err != nil {
			b.Error(err)
		}
	})
	s := &benchSite{b: b, postgres: postgres, cache: testenv.RedisServer(b)}
	s.Site = orders.NewSiteAt(postgres.URL(), s.cache.URL())
	s.Env = append([]string{ // nothing else, so that the process works as in production
		faulttest.EnvDatabaseURL + "=" + s.Database, faulttest.EnvRedisURL + "=" + s.Redis, faulttest.EnvHTTPAddr + "=127.0.0.1:0",
		faulttest.EnvTokenKey + "=" + faulttest.TokenKey, faulttest.EnvOpsToken + "=" + faulttest.OpsToken,
		envMaxOpenOrders + "=0", envMaxOpenUnits + "=0",
	}, env...)
	s.Run(b, "migrate", "--seed")
	s.db = faulttest.OpenDatabase(b, s.Database)
	s.products = insertProducts(b, s.db, products)
	s.process = s.Serve(b)
	for range 2000 {
		s.headers = append(s.headers, s.header("/api/orders", s.process.SignUp().Token, len(orderBody(nil, s.products[0]))))
	}
	return s
}

// Variables that limit what a customer can order.
const (
	envMaxOpenOrders = faulttest.EnvPrefix + "MAX_OPEN_ORDERS"
	envMaxOpenUnits  = faulttest.EnvPrefix + "MAX_OPEN_UNITS"
)

// insertProducts inserts n products with more stock than a benchmark can sell. Their ids are those of [pgbench.ID].
func insertProducts(b *testing.B, db *sql.DB, n int) (ids []string) {
	b.Helper()
	for i := range n {
		id := fmt.Sprintf(pgbench.ID, i+1)
		_, err := db.ExecContext(b.Context(), `INSERT INTO products (id, name, price_cents, currency, supply, available)
			VALUES ($1, $2, 100, 'EUR', 1000000000, 1000000000)`, id, fmt.Sprint("product ", i))
		testenv.Must(b, err)
		ids = append(ids, id)
	}
	return ids
}

func (s *benchSite) addr() string { return strings.TrimPrefix(s.process.URL, "http://") }

// header returns the header of a POST request of a customer, without the empty line.
func (s *benchSite) header(path, token string, length int) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n", path, s.addr(), token, length)
}

func orderBody(buf []byte, product string) []byte {
	buf = append(buf, `{"items":[{"product_id":"`...)
	buf = append(buf, product...)
	return append(buf, `","quantity":1}]}`...)
}

// orders returns a requester that places orders of one item each. Each order is the next customer's, for a random one
// of the products. With a key, the requests have idempotency keys that begin with it.
func (s *benchSite) orders(key string, products []string) loadtest.Requester {
	return func(buf []byte, i int) []byte {
		buf = append(buf, s.headers[i%len(s.headers)]...)
		if key != "" {
			buf = append(buf, "Idempotency-Key: "...)
			buf = append(buf, key...)
			buf = append(strconv.AppendInt(buf, int64(i), 10), "\r\n"...)
		}
		return orderBody(append(buf, "\r\n"...), products[rand.IntN(len(products))])
	}
}

// awaitEnds waits until all orders have ended and are booked. The conditions are those of indexes: a benchmark may have a million orders.
func (s *benchSite) awaitEnds(within time.Duration) {
	s.b.Helper()
	testenv.EventuallyWithin(s.b, within, "all orders have ended and are booked", func() bool {
		return !testenv.Query[bool](s.b, s.db, `SELECT EXISTS (SELECT FROM orders WHERE status = 'pending') OR EXISTS (SELECT FROM orders WHERE NOT booked AND status <> 'pending')`)
	})
}

// serverVersion returns the version of PostgreSQL.
func serverVersion(b *testing.B, db *sql.DB) string {
	b.Helper()
	return testenv.Query[string](b, db, `SELECT split_part(current_setting('server_version'), ' ', 1)`)
}

// waitForRelay waits until the outbox is empty, so that no measurement includes work of the one before.
func (s *benchSite) waitForRelay() {
	s.b.Helper()
	faulttest.Eventually(s.b, "the outbox is empty", func() (empty bool) {
		testenv.Must(s.b, s.db.QueryRowContext(s.b.Context(), `SELECT NOT EXISTS (SELECT FROM outbox)`).Scan(&empty))
		return empty
	})
}

// placeOverHTTP lets each client place one order after the other.
func (s *benchSite) placeOverHTTP(clients int, products []string) sample {
	s.b.Helper()
	before := s.usage()
	r := loadtest.ClosedLoop(s.b, s.addr(), clients, *placeFor, s.orders("", products))
	used := s.usage().since(before)
	created := loadtest.Is(http.StatusCreated)
	placed := r.Count(created)
	if placed == 0 {
		s.b.Fatalf("no order was placed with %d clients; the process wrote:\n%s", clients, s.process.Text())
	}
	return sample{
		rate: r.Rate(created), p50: milliseconds(faulttest.Percentile(r.Latencies(created), 50)),
		p99:    milliseconds(faulttest.Percentile(r.Latencies(created), 99)),
		failed: len(r.Responses) - placed, cpu: used.each(placed),
	}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// placeWithPgbench runs the statements that place an order with pgbench.
func (s *benchSite) placeWithPgbench(clients, products int) sample {
	s.b.Helper()
	before := s.usage()
	r, err := pgbench.Place(s.b.Context(), pgbench.Load{
		Database: s.Database, Module: "..", Clients: clients, Products: products, For: *placeFor,
	})
	if errors.Is(err, pgbench.ErrMissing) {
		s.b.Skip(err)
	}
	testenv.Must(s.b, err)
	used := s.usage().since(before)
	used.clients = r.CPU
	return sample{rate: r.Rate, cpu: used.each(r.Orders)}
}

// usage is processor time.
type usage struct{ service, postgres, redis, clients time.Duration }

// usage returns the processor time used so far. That of the clients is the test's own.
func (s *benchSite) usage() usage {
	s.b.Helper()
	var self syscall.Rusage
	testenv.Must(s.b, syscall.Getrusage(syscall.RUSAGE_SELF, &self))
	return usage{
		service: processorTime(s.b, s.process.Cmd.Process.Pid), postgres: processorTime(s.b, s.postgres.Pid()),
		redis:   processorTime(s.b, s.cache.Pid()),
		clients: time.Duration(self.Utime.Nano() + self.Stime.Nano()),
	}
}

func (u usage) since(before usage) usage {
	return usage{
		u.service - before.service, u.postgres - before.postgres, u.redis - before.redis, u.clients - before.clients,
	}
}

// each returns the part of one of n orders.
func (u usage) each(n int) usage {
	d := time.Duration(max(n, 1))
	return usage{u.service / d, u.postgres / d, u.redis / d, u.clients / d}
}

// processorTime returns the processor time that a process and its children have used, including the children that have
// ended.
func processorTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	const tick = time.Second / 100 // the unit of /proc/PID/stat
	const user, ended = 11, 13     // the indexes of utime and cutime; stime and cstime follow
	sum := func(fields []string, indexes ...int) (ticks time.Duration) {
		if len(fields) == 0 {
			return 0
		}
		for _, i := range indexes {
			n, err := strconv.Atoi(fields[i])
			testenv.Must(b, err)
			ticks += time.Duration(n)
		}
		return ticks * tick
	}
	total := sum(faulttest.StatOf(pid), user, user+1, ended, ended+1)
	for _, child := range faulttest.ChildrenOf(b, pid) {
		total += sum(faulttest.StatOf(child), user, user+1)
	}
	return total
}
