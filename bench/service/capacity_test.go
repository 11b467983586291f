package service

import (
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.com/shop/bench/loadtest"
	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
)

var capacityReport = flag.String("capacity.report", "",
	"the file for the report of BenchmarkCapacity; without it the benchmark is skipped")

const (
	capacityRate    = 300              // orders a second
	capacityFor     = 30 * time.Second // how long BenchmarkCapacity places orders
	capacityTimeout = 90 * time.Second // of the orders
	capacityClients = 32               // that place orders as fast as possible
	providerRate    = 20               // customers who pay at a provider, a second
	// busyProviderRate is a rate for which an account needs higher limits than it has by default.
	busyProviderRate = 100
)

// BenchmarkCapacity measures what an order costs at a moderate rate when it is placed, paid and cancelled, and what a
// process and an open page cost. From these it calculates what larger loads need.
func BenchmarkCapacity(b *testing.B) {
	if *capacityReport == "" {
		b.Skip("its report needs an idle machine: run make -C bench capacity")
	}
	for b.Loop() {
		s := loadtest.NewSite(b, orders, 1000,
			orders.TimeoutVariable()+"="+capacityTimeout.String())
		c := capacity{started: memoryOf(b, s.Process.Cmd.Process.Pid)}

		redisBefore := redisMemory(s)
		began := time.Now()
		c.placed = costOf(s, func() (orders int) {
			arrivals := loadtest.Poisson(capacityRate, capacityFor, 1)
			r := loadtest.OpenLoop(b, s.Addr(), 200, arrivals, capacityFor, s.Orders("capacity-", s.Products))
			s.AwaitRelay()
			return r.Count(loadtest.Is(http.StatusCreated))
		})
		c.task = (redisMemory(s) - redisBefore) / float64(c.placed.orders)
		c.loaded = memoryOf(b, s.Process.Cmd.Process.Pid)
		c.connections = testenv.Query[int](b, s.DB,
			`SELECT count(*) FROM pg_stat_activity WHERE application_name = $1`, orders.Program)
		c.idle = costOf(s, func() (seconds int) {
			const idle = 20
			faulttest.Sleep(b.Context(), idle*time.Second)
			return idle
		})
		faulttest.Sleep(b.Context(), time.Until(began.Add(capacityTimeout)))
		c.cancelled = costOf(s, func() (orders int) {
			s.AwaitEnds(capacityFor + faulttest.Patience)
			return testenv.Query[int](b, s.DB, `SELECT count(*) FROM orders WHERE status = 'cancelled'`)
		})
		pay := payments(s)
		c.paid = costOf(s, func() (orders int) {
			const lasting = 10 * time.Second
			next := func(buf []byte, i int) []byte { return append(buf, pay[i]...) }
			arrivals := loadtest.Steady(len(pay)/10-1, lasting)
			r := loadtest.OpenLoop(b, s.Addr(), 200, arrivals, lasting+time.Second, next)
			testenv.EventuallyWithin(b, faulttest.Patience, "all paid orders are booked", func() bool {
				return !testenv.Query[bool](b, s.DB,
					`SELECT EXISTS (SELECT FROM orders WHERE NOT booked AND status = 'paid')`)
			})
			return r.Count(loadtest.Is(http.StatusOK))
		})
		c.page = pageMemory(s)
		c.request = emptyRequest(s)
		for _, rate := range []int{100, 1_000, 2_000} {
			c.points = append(c.points, pointOf(s, func() (loadtest.Traffic, float64) {
				const lasting = 10 * time.Second
				arrivals := loadtest.Poisson(float64(rate), lasting, 2)
				return loadtest.OpenLoop(b, s.Addr(), 200, arrivals, lasting, s.Orders("", s.Products)), float64(rate)
			}))
		}
		c.points = append(c.points, pointOf(s, func() (loadtest.Traffic, float64) {
			r := loadtest.ClosedLoop(b, s.Addr(), capacityClients, 10*time.Second, s.Orders("", s.Products))
			return r, r.Rate(loadtest.Is(http.StatusCreated))
		}))
		s.Process.Interrupt() // otherwise it would cancel its last orders at the same time
		c.provider = costAtProvider(b, providerRate)
		c.providerBusy = costAtProvider(b, busyProviderRate)
		testenv.Must(b, os.WriteFile(*capacityReport, []byte(c.report()), 0o644)) //nolint:gosec // a document
		b.Log(c.report())
	}
}

// capacity is what BenchmarkCapacity has measured.
type capacity struct {
	placed, paid, cancelled cost
	provider, providerBusy  cost          // of an order paid at a payment provider, after it was placed
	idle                    cost          // of a second without requests
	task                    float64       // bytes of Redis for a pending order
	started, loaded         float64       // bytes of memory of a process
	connections             int           // of the process to PostgreSQL
	page                    float64       // bytes of memory of a process for an open page
	request                 time.Duration // of a request that does nothing, the median
	points                  []point       // at increasing rates, the last one with clients that place as fast as possible
}

// point is a load of placements. Its costs are those of one order.
type point struct {
	rate, batch float64 // orders a second, and in a transaction
	cpu         loadtest.Usage
	p50, p99    time.Duration
}

// pointOf measures a load of placements. load also returns the rate.
func pointOf(s *loadtest.Site, load func() (loadtest.Traffic, float64)) point {
	s.T.Helper()
	api := &faulttest.Member{Process: s.Process}
	used, before := s.Usage(), faulttest.BatchesOf(api)
	r, rate := load()
	s.AwaitRelay()
	took, after := r.Latencies(loadtest.Is(http.StatusCreated)), faulttest.BatchesOf(api)
	return point{
		rate: rate, batch: (after.Created - before.Created) / (after.Batches - before.Batches),
		cpu: s.Usage().Since(used).Each(len(took)),
		p50: faulttest.Percentile(took, 50), p99: faulttest.Percentile(took, 99),
	}
}

// cost is what a number of orders have cost. Without its method each it is the sum.
type cost struct {
	orders         int
	used           loadtest.Usage
	wal            float64 // bytes
	redis, network float64 // bytes from and to Redis, and of all connections together, with Redis and the headers of TCP
}

// costOf returns what do costs. It returns the number of orders.
func costOf(s *loadtest.Site, do func() (orders int)) cost {
	s.T.Helper()
	testenv.Exec(s.T, s.DB, `CHECKPOINT`)
	lsn := testenv.Query[string](s.T, s.DB, `SELECT pg_current_wal_insert_lsn()::text`)
	used, redis, network := s.Usage(), redisTraffic(s), loopbackTraffic(s.T)
	c := cost{orders: do()}
	c.used, c.redis, c.network = s.Usage().Since(used), redisTraffic(s)-redis, loopbackTraffic(s.T)-network
	c.wal = testenv.Query[float64](s.T, s.DB, `SELECT (pg_current_wal_insert_lsn() - $1::pg_lsn)::float8`, lsn)
	if c.orders == 0 {
		s.T.Fatal("no order was measured")
	}
	return c
}

// each returns the cost of one order.
func (c cost) each() cost {
	n := float64(c.orders)
	return cost{1, c.used.Each(c.orders), c.wal / n, c.redis / n, c.network / n}
}

// info returns a number of the answer of Redis's command INFO.
func info(s *loadtest.Site, name string) float64 {
	s.T.Helper()
	rdb, err := delay.Connect(s.Redis, nil)
	testenv.Must(s.T, err)
	defer rdb.Close()
	text, err := rdb.Info(s.T.Context()).Result()
	testenv.Must(s.T, err)
	_, after, found := strings.Cut(text, "\r\n"+name+":")
	if !found {
		s.T.Fatalf("INFO has no %s", name)
	}
	number, _, _ := strings.Cut(after, "\r\n")
	n, err := strconv.ParseFloat(number, 64)
	testenv.Must(s.T, err)
	return n
}

func redisMemory(s *loadtest.Site) float64 { s.T.Helper(); return info(s, "used_memory") }

func redisTraffic(s *loadtest.Site) float64 {
	s.T.Helper()
	return info(s, "total_net_input_bytes") + info(s, "total_net_output_bytes")
}

// loopbackTraffic returns the bytes that all connections of this machine to itself have transmitted.
func loopbackTraffic(t testing.TB) float64 {
	t.Helper()
	text, err := os.ReadFile("/proc/net/dev")
	testenv.Must(t, err)
	_, line, _ := strings.Cut(string(text), " lo:")
	n, err := strconv.ParseFloat(strings.Fields(line)[0], 64)
	testenv.Must(t, err)
	return n
}

// memoryOf returns the bytes of memory of a process.
func memoryOf(t testing.TB, pid int) float64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	testenv.Must(t, err)
	_, line, _ := strings.Cut(string(text), "VmRSS:")
	kilobytes, err := strconv.ParseFloat(strings.Fields(line)[0], 64)
	testenv.Must(t, err)
	return kilobytes * 1024
}

// pageMemory returns the bytes of memory that the process needs for an open page.
func pageMemory(s *loadtest.Site) float64 {
	const pages = 2_000
	s.T.Helper()
	pid, token := s.Process.Cmd.Process.Pid, s.Process.SignUp().Token
	before := memoryOf(s.T, pid)
	for range pages {
		conn, err := net.Dial("tcp", s.Addr())
		testenv.Must(s.T, err)
		defer conn.Close()
		_, err = fmt.Fprintf(conn, "GET /api/events HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n\r\n",
			s.Addr(), token)
		testenv.Must(s.T, err)
		_, err = conn.Read(make([]byte, 1024))
		testenv.Must(s.T, err)
	}
	return (memoryOf(s.T, pid) - before) / pages
}

// emptyRequest returns the median time of a request that does nothing.
func emptyRequest(s *loadtest.Site) time.Duration {
	s.T.Helper()
	const lasting = 5 * time.Second
	next := func(buf []byte, _ int) []byte {
		return append(buf, "GET /healthz HTTP/1.1\r\nHost: shop\r\n\r\n"...)
	}
	r := loadtest.OpenLoop(s.T, s.Addr(), 200, loadtest.Poisson(100, lasting, 2), lasting, next)
	answers := r.Latencies(loadtest.Is(http.StatusOK))
	if len(answers) == 0 {
		s.T.Fatal("GET /healthz is not answered")
	}
	return faulttest.Percentile(answers, 50)
}

// payments places orders, and returns the requests that pay them.
func payments(s *loadtest.Site) (requests [][]byte) {
	s.T.Helper()
	for range 100 {
		c := s.Process.SignUp()
		for range 30 {
			placed := c.Expect(http.StatusCreated, orders.Create(shoptest.OneOfBeans, ""))
			id := faulttest.Decode[shoptest.Order](s.T, placed).ID
			requests = append(requests, s.Post("/api/orders/"+id+"/pay", c.Token))
		}
	}
	return requests
}

// report returns the document.
func (c *capacity) report() string {
	var out strings.Builder
	fmt.Fprintf(&out, `# Capacity

What an order costs, and what follows from that for larger loads. The benchmark places %d orders a second for %v,
with an idempotency key and one item each, and lets them time out. Others are paid at once. A commit waits for the
disk.

- PostgreSQL, Redis and one process of the service, on a machine with %d processors
- Date: %s
- To repeat: make -C bench capacity

## Costs of an order

| | processor: service | PostgreSQL | Redis | WAL | to and from Redis | on all connections |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
`, capacityRate, capacityFor, runtime.NumCPU(), time.Now().UTC().Format(time.DateOnly))
	row := func(name string, c cost) {
		each := c.each()
		network := "–" // not measured
		if each.network > 0 {
			network = fmt.Sprintf("%.0f B", each.network)
		}
		fmt.Fprintf(&out, "| %s | %d µs | %d µs | %d µs | %.0f B | %.0f B | %s |\n", name, each.used.Service.Microseconds(),
			each.used.Postgres.Microseconds(), each.used.Redis.Microseconds(), each.wal, each.redis, network)
	}
	row("placed", c.placed)
	row("paid", c.paid)
	if c.provider.orders > 0 {
		row("paid at a provider", c.provider)
		row(fmt.Sprintf("the same, %d a second", busyProviderRate), c.providerBusy)
	}
	row("cancelled when due", c.cancelled)
	row("a second without requests, all roles", c.idle)
	fmt.Fprintf(&out, `
WAL begins after a checkpoint, so it has images of pages, which longer intervals between checkpoints make rarer. The
traffic of all connections includes HTTP, PostgreSQL and Redis, and the headers of TCP. No row has the claim and the
ack that the task of a paid order costs Redis at its due time. [Size](size.md) has the bytes on disk.
%s
| | |
| --- | ---: |
| Redis, for the tasks of a pending order: cancellation and reminder | %.0f B |
| memory of a process: at its start; under this load | %.0f MB; %.0f MB |
| connections of a process to PostgreSQL under this load | %d |
| memory of a process for an open page | %.1f kB |

`, c.providerNote(), c.task, c.started/1e6, c.loaded/1e6, c.connections, c.page/1e3)
	out.WriteString(c.rates())
	out.WriteString(simulated(c.request, c.points))
	out.WriteString(c.growth())
	return out.String()
}

// providerNote returns a paragraph about the row of orders that are paid at a provider, or "" if there is no such row.
func (c *capacity) providerNote() string {
	if c.provider.orders == 0 {
		return ""
	}
	return fmt.Sprintf(`
In the row "paid at a provider", %d customers a second pay at a simulator. The row has everything from the request
that opens the checkout to the booking. The costs of the simulator are left out, so the traffic on all connections is
not known. At this low rate each order has its part of a second without requests, and half of the service's time is
spent in the kernel, which puts its threads to sleep and wakes them between requests. So the next row has %d customers a
second. By default the limits of the provider's account allow 25 new checkouts a second, so the larger loads below leave
these orders out. No row has the first check of an attempt, 30 s after its opening.
`, providerRate, busyProviderRate)
}

// rates returns what a placement costs at each rate.
func (c *capacity) rates() string {
	var out strings.Builder
	fmt.Fprintf(&out, `## Placements by rate

An order costs less when more are placed. One reason is that orders that arrive while others are placed share a
transaction. The last row is that of %d clients that place as fast as they can.

| orders a second | in a transaction | service | PostgreSQL | Redis | p50 | p99 |
| ---: | ---: | ---: | ---: | ---: | ---: | ---: |
`, capacityClients)
	for _, p := range c.points {
		fmt.Fprintf(&out, "| %.0f | %.1f | %d µs | %d µs | %d µs | %.1f ms | %.1f ms |\n",
			p.rate, p.batch, p.cpu.Service.Microseconds(), p.cpu.Postgres.Microseconds(), p.cpu.Redis.Microseconds(),
			loadtest.Milliseconds(p.p50), loadtest.Milliseconds(p.p99))
	}
	return out.String()
}

// growth returns what larger loads need, by the costs.
func (c *capacity) growth() string {
	var out strings.Builder
	out.WriteString(`
## Larger loads

The processors are those that work all the time: for a placement by the table of rates, and for the end of an order
by the first table, which is that of 300 orders a second. Each column has the more expensive way to end: the
processors that of the row with more processor time in all, and the WAL that of the row with more WAL. The last row
has ten times the load, at the costs of the row before. The timeout is 30 minutes. Plan twice as many processors, so
that a burst finds some.

| orders a second | a day | service | PostgreSQL | Redis | WAL | pending orders in Redis |
| ---: | ---: | ---: | ---: | ---: | ---: | ---: |
`)
	placed, ended, paid := c.placed.each(), c.cancelled.each(), c.paid.each()
	if paid.used.Total() > ended.used.Total() {
		ended = paid
	}
	wal := placed.wal + max(paid.wal, c.cancelled.each().wal)
	tenfold := c.points[len(c.points)-1]
	tenfold.rate *= 10
	for _, p := range append(slices.Clone(c.points), tenfold) {
		fmt.Fprintf(&out, "| %.0f | %.1f million | %.2f | %.2f | %.2f | %.1f MB/s | %.0f MB |\n", p.rate, p.rate*86_400/1e6,
			p.rate*(p.cpu.Service+ended.used.Service).Seconds(), p.rate*(p.cpu.Postgres+ended.used.Postgres).Seconds(),
			p.rate*(p.cpu.Redis+ended.used.Redis).Seconds(), p.rate*wal/1e6, p.rate*1_800*c.task/1e6)
	}
	out.WriteString(`
What is exhausted first, and what helps:

1. **The processors of the service.** Start more processes: they share nothing but the servers.
2. **The processor of Redis.** Redis executes commands with one thread, so one Redis is full before its column
   reaches 1. Give the queues [shards](../../docs/production.md#redis) on a cluster.
3. **The locks of common products.** Orders of one product are placed one transaction after the other, however many
   processes there are. So are all orders when their transactions get large enough to have products in common: see
   the simulation above. Faster commits help, and the groups of the last point.
4. **PostgreSQL's processors, then its WAL.** One server has all orders. A larger server helps, and a disk of its own
   for the WAL.
5. **PostgreSQL's connections.** Each process opens up to ` + "`SHOP_DATABASE_CONNS`" + `. Use a
   [pooler](../../docs/production.md#pgbouncer) before the sum reaches some hundreds.
6. **One PostgreSQL.** When the largest server is too small, give each group of sellers a database, a Redis and
   processes of their own. The service has no sellers: yours must have them, and must send an order to its group. An
   order needs its products, which are in one group, and its customer, whose bounds of open orders then count for
   each group. No benchmark has measured this.
`)
	return out.String()
}
