package main

import (
	"context"
	"database/sql"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/app"
	"example.com/shop/internal/order"
	"example.com/shop/internal/shop"
	"example.com/shop/internal/testenv"
	"example.com/shop/migrations"
	paymentsmigrations "example.com/shop/payments/migrations"
)

// TestMain removes the service's own variables from the environment, because the developer's environment may set some.
func TestMain(m *testing.M) {
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "SHOP_") {
			if err := os.Unsetenv(name); err != nil {
				panic(err)
			}
		}
	}
	testenv.Main(m, migrations.Up, paymentsmigrations.Set.Up)
}

// testApp is a process with all parts.
type testApp struct {
	*app.Process
	orders *order.Service
	store  *order.Store
}

// newTestApp returns a process on a new database.
func newTestApp(t testing.TB, redisURL string, shards int) *testApp {
	t.Helper()
	return openApp(t, testenv.Postgres(t), redisURL, shards)
}

// openApp returns a process on a database that it may share with another one.
func openApp(t testing.TB, databaseURL, redisURL string, shards int) *testApp {
	t.Helper()
	o := validOptions()
	o.DatabaseURL, o.RedisURL, o.QueueShards = databaseURL, redisURL, shards
	return openAppWith(t, &o)
}

// openAppWith returns a process with the given options.
func openAppWith(t testing.TB, o *serveCommand) *testApp {
	t.Helper()
	return openLoggedApp(t, o, slog.DiscardHandler)
}

// openLoggedApp returns a process with the given options that logs to log.
func openLoggedApp(t testing.TB, o *serveCommand, log slog.Handler) *testApp {
	t.Helper()
	return openConfiguredApp(t, o, o.Config(program()), log)
}

// openConfiguredApp returns a process with the given options and configuration that logs to log.
func openConfiguredApp(t testing.TB, o *serveCommand, config app.Config, log slog.Handler) *testApp {
	t.Helper()
	config.WorkerDrain = time.Second
	s, err := shop.Open(t.Context(), config, &o.Options, payments(o.Payment), slog.New(log))
	testenv.Must(t, err)
	t.Cleanup(s.Close)
	return &testApp{s.Process, s.Orders, order.NewStore(s.DB)}
}

// runCommand runs a command of the program, whose output it writes to out. It returns the exit code.
func runCommand(ctx context.Context, args []string, out io.Writer) int {
	p := program()
	p.Out, p.Err = out, out
	return app.ExitCode(app.Run(ctx, p, &commands{}, args), p)
}

// pendingOrders inserts n pending orders of a new product that reserve all of its stock, and returns their ids. The
// first order is due in due + 10 ms, and each other order 10 ms after the one before. The orders have no outbox rows
// and no tasks.
func pendingOrders(t testing.TB, a *testApp, n int, due time.Duration) []string {
	t.Helper()
	customer, product := uuid.New(), uuid.New()
	mustExec(t, a, `INSERT INTO customers (id) VALUES ($1)`, customer)
	mustExec(t, a, `INSERT INTO products (id, name, price_cents, currency, supply, available) VALUES ($1, 'thing', 100, 'EUR', $2, 0)`, product, n)
	conn := withoutTimeout(t, a)
	defer conn.Close()
	rows, err := conn.QueryContext(t.Context(), `
		WITH placed AS (
			INSERT INTO orders (id, customer_id, total_cents, currency, created_at, expires_at)
			SELECT gen_random_uuid(), $1, 100, 'EUR', now() - interval '1 day',
			       now() + $3 * interval '1 microsecond' + n * interval '10 milliseconds'
			FROM generate_series(1, $2::int) n
			RETURNING id
		), items AS (
			INSERT INTO order_items SELECT id, $4, 1, 100 FROM placed
		)
		SELECT id FROM placed`, customer, n, due.Microseconds(), product)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var ids []string
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return ids
}

// mustExec runs a statement, which may take longer than the statements of the service.
func mustExec(t testing.TB, a *testApp, statement string, args ...any) {
	t.Helper()
	conn := withoutTimeout(t, a)
	defer conn.Close()
	if _, err := conn.ExecContext(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// withoutTimeout returns a connection without the statement timeout of the service. The connection keeps this setting
// in the pool.
func withoutTimeout(t testing.TB, a *testApp) *sql.Conn {
	t.Helper()
	conn, err := a.Pool.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(t.Context(), `SET statement_timeout = 0`); err != nil {
		t.Fatal(err)
	}
	return conn
}
