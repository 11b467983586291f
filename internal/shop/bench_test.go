package shop_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/testenv"
)

// These benchmarks measure those figures of the README that need access to the components. e2e measures the others,
// over HTTP. Machines differ, so the README compares each figure with another figure of the same run, or with a bound.

// scheduleAll schedules a task for each id, due after left.
func scheduleAll(b testing.TB, a *testApp, ids []string, left time.Duration) {
	b.Helper()
	for page := range slices.Chunk(ids, 1000) {
		msgs := make([]delay.Message, len(page))
		for i, id := range page {
			msgs[i] = delay.In(id, left)
		}
		testenv.Must(b, a.Kinds[0].Queue.Schedule(b.Context(), msgs...))
	}
}

func startWorker(b *testing.B, a *testApp) (stop func()) {
	b.Helper()
	return startInBackground(b, a.Kinds[0].Worker.Run)
}

// startInBackground starts a function that runs until its context ends.
func startInBackground(b *testing.B, run func(context.Context) error) (stop func()) {
	b.Helper()
	ctx, cancel := context.WithCancel(b.Context())
	result := make(chan error, 1)
	go func() { result <- run(ctx) }()
	return func() {
		cancel()
		testenv.Must(b, <-result)
	}
}

func awaitNonePending(b *testing.B, a *testApp) {
	b.Helper()
	testenv.Eventually(b, "no order is pending", func() bool {
		var pending bool
		err := a.Pool.QueryRowContext(b.Context(),
			`SELECT EXISTS (SELECT FROM orders WHERE status = 'pending')`).Scan(&pending)
		return err == nil && !pending
	})
}

// BenchmarkLateness measures how late a worker cancels 200 orders per second that become due during 10 seconds.
func BenchmarkLateness(b *testing.B) {
	const perSecond, seconds = 200, 10
	a := newTestApp(b, testenv.Redis(b), 1)
	defer startWorker(b, a)()
	for b.Loop() {
		pendingOrders(b, a, perSecond*seconds, 2*time.Second)
		testenv.Exec(b, a.Pool, fmt.Sprintf(`
			UPDATE orders SET expires_at = o.first + n * interval '%d microseconds'
			FROM (SELECT id, row_number() OVER (ORDER BY expires_at) AS n, min(expires_at) OVER () AS first FROM orders
				WHERE status = 'pending') o
			WHERE orders.id = o.id`, 1_000_000/perSecond))
		if report := sweep(b, a); report.Missing != perSecond*seconds {
			b.Fatalf("got the report %+v, want %d missing tasks", report, perSecond*seconds)
		}
		awaitNonePending(b, a)
	}
	var figures struct {
		Lateness struct{ Worker map[string]float64 }
	}
	testenv.Must(b, json.Unmarshal(askOps(b, a, "stats"), &figures))
	for _, figure := range []string{"p50", "p99", "max"} {
		b.ReportMetric(figures.Lateness.Worker[figure+"_seconds"]*1000, figure+"-ms")
	}
}

// askOps returns the answer of a path of the operators' API.
func askOps(b *testing.B, a *testApp, path string) []byte {
	b.Helper()
	request := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/ops/api/"+path, http.NoBody)
	request.Header.Set("Authorization", "Bearer "+validOptions().Ops.OpsToken)
	answer := httptest.NewRecorder()
	a.Handler().ServeHTTP(answer, request)
	if answer.Code != http.StatusOK {
		b.Fatalf("GET %s is answered with %d, want 200", path, answer.Code)
	}
	return answer.Body.Bytes()
}

// BenchmarkSchedule measures an answer of the operators' API about what is due when, with a million pending orders that
// are due in the next 30 minutes, and the tasks of 100,000 of them.
func BenchmarkSchedule(b *testing.B) {
	a := newTestApp(b, testenv.RedisServer(b).URL(), 1)
	testenv.Exec(b, a.Pool, `INSERT INTO orders (id, customer_id, total_cents, currency, created_at, expires_at)
		SELECT gen_random_uuid(), gen_random_uuid(), 100, 'EUR', now() - interval '1 day', now() + random() * interval '30 min'
		FROM generate_series(1, 1000000)`)
	testenv.Exec(b, a.Pool, `VACUUM ANALYZE orders`)
	scheduleAll(b, a, testenv.QueryAll[string](b, a.Pool, `SELECT id FROM orders LIMIT 100000`), time.Minute)
	for b.Loop() {
		var took []time.Duration
		for range 21 {
			began := time.Now()
			askOps(b, a, "schedule")
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		b.ReportMetric(took[len(took)/2].Seconds()*1000, "median-ms")
		b.ReportMetric(took[len(took)-1].Seconds()*1000, "max-ms")
	}
}

// BenchmarkIdle counts the commands that Redis processes in a minute, with 100,000 tasks scheduled and none due: those
// of one worker, and those of a process with all roles and all kinds of task. The commands that scripts run count too.
func BenchmarkIdle(b *testing.B) {
	const tasks = 100_000
	b.Run("worker", func(b *testing.B) {
		a := newTestApp(b, testenv.RedisServer(b).URL(), 1)
		ids := make([]string, tasks)
		for i := range ids {
			ids[i] = fmt.Sprint("task-", i)
		}
		scheduleAll(b, a, ids, time.Hour)
		defer startWorker(b, a)()
		countCommands(b, a)
	})
	b.Run("process", func(b *testing.B) {
		o := fullOptions(b)
		o.DatabaseURL, o.RedisURL = testenv.Postgres(b), testenv.RedisServer(b).URL()
		a := openAppWith(b, &o)
		scheduleAll(b, a, pendingOrders(b, a, tasks, time.Hour), time.Hour)
		testenv.Exec(b, a.Pool, `VACUUM ANALYZE`)
		_, err := a.Kinds.Sweep(b.Context()) // sets the markers, so that no probe starts a sweep
		testenv.Must(b, err)
		defer startProcess(b, a)()
		countCommands(b, a)
	})
}

// startProcess runs all components of a process.
func startProcess(b *testing.B, a *testApp) (stop func()) {
	b.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	testenv.Must(b, err)
	return startInBackground(b, func(ctx context.Context) error { return a.Run(ctx, ln) })
}

// countCommands reports the commands per second that Redis processes in a minute. It begins after the start of the
// components, which send more commands.
func countCommands(b *testing.B, a *testApp) {
	b.Helper()
	const start, measured = 5 * time.Second, time.Minute
	for b.Loop() {
		<-time.After(start)
		before := commandsProcessed(b, a)
		<-time.After(measured)
		b.ReportMetric(float64(commandsProcessed(b, a)-before-1)/measured.Seconds(), "commands/s") // 1: our own INFO
	}
}

// commandsProcessed returns the number of commands that Redis has processed since it started.
func commandsProcessed(b *testing.B, a *testApp) (n int64) {
	b.Helper()
	info, err := a.Redis.InfoMap(b.Context(), "stats").Result()
	testenv.Must(b, err)
	if _, err := fmt.Sscan(info["Stats"]["total_commands_processed"], &n); err != nil {
		b.Fatal(err)
	}
	return n
}
