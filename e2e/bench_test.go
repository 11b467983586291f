package e2e

import (
	"database/sql"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/devstack"
	"example.com/shop/internal/testenv"
)

// BenchmarkPlace places orders over HTTP with 16 clients for 10 seconds. For comparison, pgbench then runs the same
// statements with 16 clients on the same server. PostgreSQL syncs to disk, as in production.
func BenchmarkPlace(b *testing.B) {
	const clients, seconds, products = 16, 10, 50
	pgbench, err := exec.LookPath("pgbench")
	if err != nil {
		if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/pgbench"); len(found) > 0 {
			pgbench = found[len(found)-1]
		} else {
			b.Skip("pgbench is not installed")
		}
	}
	dir, err := testenv.TempDir()
	must(b, err)
	data, err := os.MkdirTemp(dir, "synced-postgres-")
	must(b, err)
	postgres, err := devstack.StartPostgres(b.Context(), data, map[string]string{"max_connections": "200"})
	must(b, err)
	defer postgres.Stop()

	s := &site{database: postgres.URL(), redis: testenv.Redis(b), env: []string{
		envDatabaseURL + "=" + postgres.URL(), envHTTPAddr + "=127.0.0.1:0",
		envTokenKey + "=" + tokenKey, envOpsToken + "=" + opsToken,
	}}
	s.env = append(s.env, envRedisURL+"="+s.redis)
	s.run(b, "migrate", "--seed")
	db, err := sql.Open("pgx", s.database)
	must(b, err)
	defer db.Close()
	ids := insertProducts(b, db, products)

	p := s.serve(b)
	for b.Loop() {
		overHTTP := placeOverHTTP(p, ids, clients, seconds*time.Second)
		sql := placeWithPgbench(b, pgbench, db, s.database, ids, clients, seconds)
		b.ReportMetric(overHTTP, "orders/s-http")
		b.ReportMetric(sql, "orders/s-pgbench")
		b.ReportMetric(overHTTP/sql, "ratio")
	}
}

// insertProducts inserts n products with more stock than a benchmark can sell.
func insertProducts(b *testing.B, db *sql.DB, n int) (ids []string) {
	b.Helper()
	for i := range n {
		id := uuid.NewString()
		_, err := db.ExecContext(b.Context(), `INSERT INTO products (id, name, price_cents, currency, supply, available)
			VALUES ($1, $2, 100, 'EUR', 1000000000, 1000000000)`, id, fmt.Sprint("product ", i))
		must(b, err)
		ids = append(ids, id)
	}
	return ids
}

// placeOverHTTP lets each client place one order after the other, and returns the orders per second of all clients.
func placeOverHTTP(p *process, products []string, clients int, lasting time.Duration) float64 {
	var placed atomic.Int64
	var all sync.WaitGroup
	http.DefaultTransport.(*http.Transport).MaxIdleConnsPerHost = clients
	began := time.Now()
	for n := range clients {
		c := p.signUp()
		all.Go(func() {
			for i := n; time.Since(began) < lasting; i++ {
				req, err := http.NewRequestWithContext(p.t.Context(), "POST", c.base+"/api/orders", strings.NewReader(
					`{"items":[{"product_id":"`+products[i%len(products)]+`","quantity":1}]}`))
				if err != nil {
					p.t.Error(err)
					return
				}
				req.Header.Set("Authorization", "Bearer "+c.token)
				req.Header.Set("Content-Type", "application/json")
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					p.t.Error(err)
					return
				}
				resp.Body.Close()
				if resp.StatusCode != http.StatusCreated {
					p.t.Errorf("POST /api/orders: %d, want 201", resp.StatusCode)
					return
				}
				placed.Add(1)
			}
		})
	}
	all.Wait()
	return float64(placed.Load()) / time.Since(began).Seconds()
}

var tps = regexp.MustCompile(`tps = ([0-9.]+) \(without`)

// placeWithPgbench runs place.sql and the deletion of the outbox row as prepared statements with pgbench, and returns
// the transactions per second.
func placeWithPgbench(b *testing.B, pgbench string, db *sql.DB, url string, products []string, clients, seconds int) float64 {
	b.Helper()
	place, err := os.ReadFile("../internal/order/place.sql")
	must(b, err)
	customer := uuid.NewString()
	_, err = db.ExecContext(b.Context(), `INSERT INTO customers (id) VALUES ($1)`, customer)
	must(b, err)
	_, err = db.ExecContext(b.Context(), `CREATE TABLE IF NOT EXISTS bench_products AS SELECT row_number() OVER () AS n, id FROM products WHERE name LIKE 'product %'`)
	must(b, err)
	var script strings.Builder
	fmt.Fprintf(&script, "\\set n random(1, %d)\n", len(products))
	statement := string(place)
	for placeholder, value := range map[string]string{
		"$1": "gen_random_uuid()", "$2": "'" + customer + "'", "$3": "NULL", "$4": "NULL", "$5": "1800000000",
		"$6": "ARRAY[(SELECT id FROM bench_products WHERE n = :n)]", "$7": "ARRAY[1]", "$8": "'bench'",
	} {
		statement = regexp.MustCompile(regexp.QuoteMeta(placeholder)+`\b`).ReplaceAllLiteralString(statement, value)
	}
	fmt.Fprintf(&script, "%s\n\\gset\nDELETE FROM outbox WHERE kind = 'bench' AND task_id = :id;\n", regexp.MustCompile(`(?m)--.*$`).ReplaceAllString(statement, ""))
	file := filepath.Join(b.TempDir(), "place.sql")
	must(b, os.WriteFile(file, []byte(script.String()), 0o600))
	out, err := exec.CommandContext(b.Context(), pgbench, "-n", "-M", "prepared", "-c", strconv.Itoa(clients), "-j", "2",
		"-T", strconv.Itoa(seconds), "-f", file, url).CombinedOutput()
	if err != nil {
		b.Fatalf("pgbench: %v: %s", err, out)
	}
	m := tps.FindSubmatch(out)
	if m == nil {
		b.Fatalf("pgbench printed no tps: %s", out)
	}
	rate, err := strconv.ParseFloat(string(m[1]), 64)
	must(b, err)
	return rate
}
