package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/testenv"
)

// These benchmarks measure those figures of the README that need access to the components. e2e measures the others,
// over HTTP. Machines differ, so the README compares each figure with another figure of the same run, or with a bound.

// BenchmarkDrain measures how fast a worker cancels 20,000 orders that are due at one instant. The time starts before
// the tasks are scheduled, and ends when the last cancellation is committed. The benchmark compares it with one
// set-based statement that does the same.
func BenchmarkDrain(b *testing.B) {
	const orders = 20_000
	a := newTestApp(b, testenv.Redis(b), 1)
	var worked, inOneStatement time.Duration
	for b.Loop() {
		ids := dueAtOnce(b, a, orders)
		stop := startWorker(b, a)
		began := time.Now()
		scheduleAll(b, a, ids, 0)
		scheduled := time.Now()
		awaitNonePending(b, a)
		worked += time.Since(began)
		b.ReportMetric(scheduled.Sub(began).Seconds(), "s-to-schedule")
		stop()

		dueAtOnce(b, a, orders)
		began = time.Now()
		mustExec(b, a, oneStatement)
		inOneStatement += time.Since(began)
	}
	n := float64(orders * b.N)
	b.ReportMetric(n/worked.Seconds(), "orders/s")
	b.ReportMetric(n/inOneStatement.Seconds(), "orders/s-in-one-statement")
	b.ReportMetric(inOneStatement.Seconds()/worked.Seconds(), "ratio")
}

// oneStatement cancels all orders that are due, as the worker does, but without a queue and without a result per order.
const oneStatement = `
	WITH cancelled AS (
		UPDATE orders SET status = 'cancelled', cancel_reason = 'timeout', cancelled_at = now(), ended_by = 'worker'
		WHERE status = 'pending' AND expires_at <= now()
		RETURNING id
	)
	UPDATE products p SET available = available + r.quantity
	FROM (SELECT product_id, sum(quantity)::bigint AS quantity FROM order_items JOIN cancelled ON id = order_id GROUP BY 1) r
	WHERE p.id = r.product_id`

// dueAtOnce inserts n orders that are past their deadlines.
func dueAtOnce(b *testing.B, a *testApp, n int) []string {
	b.Helper()
	ids := pendingOrders(b, a, n, -time.Hour)
	mustExec(b, a, `VACUUM ANALYZE`)
	return ids
}

// scheduleAll schedules a task for each id, due after left.
func scheduleAll(b *testing.B, a *testApp, ids []string, left time.Duration) {
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
		err := a.Pool.QueryRowContext(b.Context(), `SELECT EXISTS (SELECT FROM orders WHERE status = 'pending')`).Scan(&pending)
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
		mustExec(b, a, fmt.Sprintf(`
			UPDATE orders SET expires_at = o.first + n * interval '%d microseconds'
			FROM (SELECT id, row_number() OVER (ORDER BY expires_at) AS n, min(expires_at) OVER () AS first FROM orders WHERE status = 'pending') o
			WHERE orders.id = o.id`, 1_000_000/perSecond))
		if report := sweep(b, a); report.Missing != perSecond*seconds {
			b.Fatalf("got the report %+v, want %d missing tasks", report, perSecond*seconds)
		}
		awaitNonePending(b, a)
	}
	late, err := a.store.Lateness(b.Context())
	testenv.Must(b, err)
	b.ReportMetric(late.Worker.P50*1000, "p50-ms")
	b.ReportMetric(late.Worker.P99*1000, "p99-ms")
	b.ReportMetric(late.Worker.Max*1000, "max-ms")
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
		o := fullOptions()
		o.DatabaseURL, o.RedisURL = testenv.Postgres(b), testenv.RedisServer(b).URL()
		a := openAppWith(b, &o)
		scheduleAll(b, a, pendingOrders(b, a, tasks, time.Hour), time.Hour)
		mustExec(b, a, `VACUUM ANALYZE`)
		_, err := a.Kinds.Sweep(b.Context()) // the first sweep is a restore
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

// BenchmarkSweep measures a sweep with 10,000 orders within the look-ahead: first with 100,000 pending orders in total,
// then with 1,000,000. The duration should depend only on the number of orders within the look-ahead.
func BenchmarkSweep(b *testing.B) {
	const near = 10_000
	for _, pending := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprint(pending), func(b *testing.B) {
			a := newTestApp(b, testenv.Redis(b), 1)
			testenv.Must(b, a.Kinds[0].Queue.BeginRestore(b.Context()))
			testenv.Must(b, a.Kinds[0].Queue.EndRestore(b.Context()))
			pendingOrders(b, a, near, 0)
			mustExec(b, a, `UPDATE orders SET expires_at = now() + interval '100 seconds'`)
			pendingOrders(b, a, pending-near, 24*time.Hour)
			mustExec(b, a, `VACUUM ANALYZE`)
			if report := sweep(b, a); report.Missing != near || report.Full {
				b.Fatalf("first sweep: got the report %+v, want %d missing tasks and a sweep of the look-ahead only", report, near)
			}
			for b.Loop() {
				if report := sweep(b, a); report.Examined != near || report.Repairs() != 0 {
					b.Fatalf("got the report %+v, want %d orders examined and no repairs", report, near)
				}
			}
		})
	}
}
