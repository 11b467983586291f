package loadtest

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.com/shop/bench/pgbench"
	"example.com/shop/internal/devstack"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
)

// Site is a site of the shop with one process, for measurements of orders.
type Site struct {
	*faulttest.Site
	T        testing.TB
	DB       *sql.DB
	Process  *faulttest.Process
	Products []string // the ids of the products

	servers Servers
	headers [][]byte // of the requests of each customer that place an order, without the empty line
}

// Servers are the servers of a site.
type Servers struct {
	Postgres *devstack.Postgres
	Database string // the URL of a database of Postgres, without tables
	Redis    *devstack.Redis
}

// Customers is the number of customers who place the orders of a site of [NewSite].
const Customers = 2000

// NewSite starts servers of its own and the service, adds products, and signs up customers. It adds env to the
// environment of the service. PostgreSQL syncs to disk, as in production.
func NewSite(t testing.TB, service *faulttest.Service, products int, env ...string) *Site {
	t.Helper()
	dir, err := testenv.TempDir()
	testenv.Must(t, err)
	data, err := os.MkdirTemp(dir, "synced-postgres-")
	testenv.Must(t, err)
	postgres, err := devstack.StartPostgres(t.Context(), data, map[string]string{"max_connections": "200"})
	testenv.Must(t, err)
	t.Cleanup(func() {
		if err := postgres.Stop(); err != nil {
			t.Error(err)
		}
	})
	servers := Servers{Postgres: postgres, Database: postgres.URL(), Redis: testenv.RedisServer(t)}
	return NewSiteAt(t, service, servers, products, Customers, env...)
}

// NewSiteAt is [NewSite] with given servers and a number of customers. The service does not limit how much a customer
// may order, because so few customers would soon reach the limits.
func NewSiteAt(
	t testing.TB, service *faulttest.Service, servers Servers, products, customers int, env ...string,
) *Site {
	t.Helper()
	env = append([]string{faulttest.EnvPrefix + "MAX_OPEN_ORDERS=0", faulttest.EnvPrefix + "MAX_OPEN_UNITS=0"}, env...)
	plain := service.PlainSiteAt(servers.Database, servers.Redis.URL(), env...)
	s := &Site{Site: plain, T: t, servers: servers}
	s.Run(t, "migrate", "--seed")
	s.DB = faulttest.OpenDatabase(t, s.Database)
	s.Products = InsertProducts(t, s.DB, products)
	s.Process = s.Serve(t)
	length := len(OrderBody(nil, s.Products[0]))
	for range customers {
		s.headers = append(s.headers, s.header("/api/orders", s.Process.SignUp().Token, length))
	}
	return s
}

// InsertProducts inserts n products with more stock than a benchmark can sell. Their ids are those of [pgbench.ID].
func InsertProducts(t testing.TB, db *sql.DB, n int) (ids []string) {
	t.Helper()
	for i := range n {
		id := fmt.Sprintf(pgbench.ID, i+1)
		testenv.Exec(t, db, `INSERT INTO products (id, name, price_cents, currency, supply, available)
			VALUES ($1, $2, 100, 'EUR', 1000000000, 1000000000)`, id, fmt.Sprint("product ", i))
		ids = append(ids, id)
	}
	return ids
}

// Addr returns the address of the service, as host:port.
func (s *Site) Addr() string { return strings.TrimPrefix(s.Process.URL, "http://") }

// header returns the header of a POST request of a customer, without the empty line.
func (s *Site) header(path, token string, length int) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n", path, s.Addr(), token, length)
}

// Post returns the bytes of a customer's POST request without a body.
func (s *Site) Post(path, token string) []byte { return append(s.header(path, token, 0), "\r\n"...) }

// OrderBody appends the body of a request that orders one piece of a product to buf.
func OrderBody(buf []byte, product string) []byte {
	buf = append(buf, `{"items":[{"product_id":"`...)
	buf = append(buf, product...)
	return append(buf, `","quantity":1}]}`...)
}

// Orders returns a requester that places orders of one item each. Each order is the next customer's, for a random one
// of the products. With a key, the requests have idempotency keys that begin with it.
func (s *Site) Orders(key string, products []string) Requester {
	return func(buf []byte, i int) []byte {
		buf = append(buf, s.headers[i%len(s.headers)]...)
		if key != "" {
			buf = append(buf, "Idempotency-Key: "...)
			buf = append(buf, key...)
			buf = append(strconv.AppendInt(buf, int64(i), 10), "\r\n"...)
		}
		return OrderBody(append(buf, "\r\n"...), products[rand.IntN(len(products))])
	}
}

// AwaitEnds waits until all orders have ended and are booked. The conditions are those of indexes, because a benchmark
// may have a million orders.
func (s *Site) AwaitEnds(within time.Duration) {
	s.T.Helper()
	testenv.EventuallyWithin(s.T, within, "all orders have ended and are booked", func() bool {
		return !testenv.Query[bool](s.T, s.DB, `SELECT EXISTS (SELECT FROM orders WHERE status = 'pending')
			OR EXISTS (SELECT FROM orders WHERE NOT booked AND status <> 'pending')`)
	})
}

// AwaitRelay waits until the outbox is empty, so that no measurement includes work of the one before.
func (s *Site) AwaitRelay() {
	s.T.Helper()
	faulttest.Eventually(s.T, "the outbox is empty", func() bool {
		return testenv.Query[bool](s.T, s.DB, `SELECT NOT EXISTS (SELECT FROM outbox)`)
	})
}

// Sample is the result of one measurement of placements.
type Sample struct {
	Rate     float64 // orders per second
	P50, P99 float64 // of the latency, in milliseconds; 0: unknown
	Failed   int     // responses that were not 201
	CPU      Usage   // for each order
}

// Place lets each client place one order after the other for some time.
func (s *Site) Place(clients int, lasting time.Duration, products []string) Sample {
	s.T.Helper()
	before := s.Usage()
	r := ClosedLoop(s.T, s.Addr(), clients, lasting, s.Orders("", products))
	used := s.Usage().Since(before)
	created := Is(http.StatusCreated)
	placed := r.Count(created)
	if placed == 0 {
		s.T.Fatalf("no order was placed with %d clients; the process wrote:\n%s", clients, s.Process.Text())
	}
	return Sample{
		Rate:   r.Rate(created),
		P50:    Milliseconds(faulttest.Percentile(r.Latencies(created), 50)),
		P99:    Milliseconds(faulttest.Percentile(r.Latencies(created), 99)),
		Failed: len(r.Responses) - placed,
		CPU:    used.Each(placed),
	}
}
