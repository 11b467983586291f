package shop_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/app"
	"example.com/shop/internal/shop"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/internal/testenv/programtest"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { programtest.Main(m, migrations.Up) }

const repositoryRoot = "../.."

// commands are the commands of the program.
type commands struct {
	Serve     shop.Serve         `cmd:""`
	Migrate   shop.Migrate       `cmd:""`
	Reconcile shop.Sweep         `cmd:""`
	Doctor    shop.Doctor        `cmd:""`
	Health    app.HealthCommand  `cmd:""`
	Demo      shop.Demo          `cmd:""`
	Version   app.VersionCommand `cmd:""`
}

func program() app.Program { return shop.Program("") }

// newTestApp returns a process on a new database.
func newTestApp(t testing.TB, redisURL string, shards int) *app.Process {
	t.Helper()
	return openApp(t, testenv.Postgres(t), redisURL, shards)
}

// openApp returns a process on a database that it may share with another one.
func openApp(t testing.TB, databaseURL, redisURL string, shards int) *app.Process {
	t.Helper()
	o := validOptions()
	o.DatabaseURL, o.RedisURL, o.QueueShards = databaseURL, redisURL, shards
	return openAppWith(t, &o)
}

// openAppWith returns a process with the given options.
func openAppWith(t testing.TB, o *shop.Serve) *app.Process {
	t.Helper()
	p, err := shop.New(t.Context(), o.Config(program()), &o.Options, slog.New(slog.DiscardHandler))
	testenv.Must(t, err)
	t.Cleanup(p.Close)
	return p
}

// runCommand runs a command of the program, whose output it writes to out. It returns the exit code.
func runCommand(ctx context.Context, args []string, out io.Writer) int {
	p := program()
	p.Out, p.Err = out, out
	return app.ExitCode(app.Run(ctx, p, &commands{}, args), p)
}

// post sends a request of a customer to a process, and returns the answer.
func post(t testing.TB, a *app.Process, customer uuid.UUID, path, body string) *httptest.ResponseRecorder {
	t.Helper()
	tokens, err := shop.NewTokens(validOptions().TokenKey)
	testenv.Must(t, err)
	token, err := tokens.Issue(customer)
	testenv.Must(t, err)
	return parttest.Send(t, a.Handler(), http.MethodPost, path, body, "Authorization: Bearer "+token)
}

// runDoctor runs the command doctor with more flags, and returns the exit code and the output.
func runDoctor(t testing.TB, databaseURL, redisURL string, flags ...string) (code int, printed string) {
	t.Helper()
	var out strings.Builder
	args := append([]string{"doctor", "--database-url", databaseURL, "--redis-url", redisURL}, flags...)
	code = runCommand(t.Context(), args, &out)
	return code, out.String()
}

// pendingOrders inserts n pending orders of a new product that reserve all of its stock, and returns their ids. The
// first order is due in due + 10 ms, and each other order 10 ms after the one before. The orders have no outbox rows
// and no tasks.
func pendingOrders(t testing.TB, a *app.Process, n int, due time.Duration) []string {
	t.Helper()
	customer, product := uuid.New(), uuid.New()
	testenv.Exec(t, a.Pool,
		`INSERT INTO products (id, name, price_cents, currency, supply, available)
			VALUES ($1, 'thing', 100, 'EUR', $2, 0)`, product, n)
	testenv.Exec(t, a.Pool, `
		WITH placed AS (
			INSERT INTO orders (id, customer_id, total_cents, currency, created_at, expires_at)
			SELECT gen_random_uuid(), $1, 100, 'EUR', now() - interval '1 day',
			       now() + $3 * interval '1 microsecond' + n * interval '10 milliseconds'
			FROM generate_series(1, $2::int) n
			RETURNING id
		)
		INSERT INTO order_items SELECT id, $4, 1, 100, 'a product'
			FROM placed`, customer, n, due.Microseconds(), product)
	return testenv.QueryAll[string](t, a.Pool, `SELECT id FROM orders WHERE customer_id = $1 ORDER BY expires_at`,
		customer)
}
