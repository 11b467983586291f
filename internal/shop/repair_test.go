package shop_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/timeout"
)

// These tests delete or damage data in Redis, and check that one sweep repairs it.

// The keys of a queue with one shard.
const (
	keyPrefix   = "delay:{" + order.CancelKind + ":0}:"
	dueKey      = keyPrefix + "due"
	attemptsKey = keyPrefix + "attempts"
)

// sweep runs a sweep, and returns its report without the times.
func sweep(t testing.TB, a *testApp) reconcile.Report {
	t.Helper()
	report, err := a.Kinds[0].Reconciler.Sweep(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	report.StartedAt, report.Took = time.Time{}, 0
	return report
}

// newFilledApp returns an app with n pending orders that are due within the look-ahead, and with their tasks in Redis.
// It also returns the ids of the orders.
func newFilledApp(t testing.TB, redisURL string, shards, n int) (*testApp, []string) {
	t.Helper()
	a := newTestApp(t, redisURL, shards)
	ids := pendingOrders(t, a, n, time.Minute)
	if got, want := sweep(t, a), (reconcile.Report{Outcome: reconcile.OK, Examined: n, Missing: n}); got != want {
		t.Fatalf("the first sweep reported %+v, want %+v", got, want)
	}
	awaitSync(t, a)
	return a, ids
}

// awaitSync sweeps until there is nothing to repair, and returns the last report. On a loaded machine a task may have
// been late on its way to Redis, and the next sweep repairs it. No sweep may make another repair.
func awaitSync(t testing.TB, a *testApp) (report reconcile.Report) {
	t.Helper()
	testenv.Eventually(t, "a queue in sync", func() bool {
		report = sweep(t, a)
		if report.Repairs() > report.Late {
			t.Fatalf("reported %+v, want no repairs but of late tasks", report)
		}
		return report.Late == 0 && report.Outcome == reconcile.OK
	})
	return report
}

// checkScheduled checks that every pending order has a task that is due at most half a second after the order.
func checkScheduled(t testing.TB, a *testApp) {
	t.Helper()
	table := timeout.NewTable(a.DB, order.CancelKind, a.Kinds[0].Rows, a.Log)
	page, _, err := table.Pending(t.Context(), keyset.Cursor{}, 365*24*time.Hour, 10_000)
	testenv.Must(t, err)
	ids := make([]string, len(page))
	for i, m := range page {
		ids[i] = m.ID
	}
	began := time.Now()
	locations, err := a.Kinds[0].Queue.Locate(t.Context(), ids)
	testenv.Must(t, err)
	for i, task := range locations {
		left := page[i].Due().Sub(began)
		if task.State != delay.Scheduled || task.Left > left+500*time.Millisecond {
			t.Errorf("order %s has %v left and its task is %+v, want a scheduled task with about the same time left",
				ids[i], left, task)
		}
	}
}

func TestSweepRepairsRedis(t *testing.T) {
	const n = 1500 // more than a page
	ok := reconcile.Report{Outcome: reconcile.OK, Examined: n}
	tests := map[string]struct {
		damage func(t *testing.T, a *testApp, ids []string)
		report func(*reconcile.Report)
	}{
		"members deleted": {
			func(t *testing.T, a *testApp, ids []string) {
				testenv.Must(t, a.Redis.ZRem(t.Context(), dueKey, ids[3], ids[900]).Err())
			},
			func(r *reconcile.Report) { r.Missing = 2 },
		},
		"a clock that jumped back 2 minutes": {
			func(t *testing.T, a *testApp, _ []string) { shiftScores(t, a, 2*time.Minute) },
			func(r *reconcile.Report) { r.Late = n },
		},
		"a clock that jumped ahead 2 minutes": { // an early task is harmless: the worker schedules it again
			func(t *testing.T, a *testApp, _ []string) { shiftScores(t, a, -2*time.Minute) },
			func(*reconcile.Report) {},
		},
		"wiped": {
			func(t *testing.T, a *testApp, _ []string) { testenv.Must(t, a.Redis.FlushDB(t.Context()).Err()) },
			func(r *reconcile.Report) { r.Missing = n },
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			a, ids := newFilledApp(t, testenv.Redis(t), 1, n)
			test.damage(t, a, ids)
			want := ok
			test.report(&want)
			if got := sweep(t, a); got != want {
				t.Errorf("reported %+v, want %+v", got, want)
			}
			again := reconcile.Report{Outcome: reconcile.OK, Examined: n}
			if got := awaitSync(t, a); got != again {
				t.Errorf("reported %+v when nothing was left to repair, want %+v", got, again)
			}
			if want.Missing+want.Late > 0 {
				checkScheduled(t, a)
			}
			checkRepairMetrics(t, a, test.report)
		})
	}
}

// checkRepairMetrics checks that the metrics count the repairs of a case, and the tasks that the first sweep added.
func checkRepairMetrics(t *testing.T, a *testApp, report func(*reconcile.Report)) {
	t.Helper()
	want := reconcile.Report{}
	report(&want)
	got := map[string]float64{}
	families, err := a.Registry.Gather()
	testenv.Must(t, err)
	for _, family := range families {
		if family.GetName() == "shop_reconcile_repairs_total" {
			for _, m := range family.GetMetric() {
				for _, label := range m.GetLabel() {
					if label.GetName() == "reason" {
						got[label.GetValue()] = m.GetCounter().GetValue()
					}
				}
			}
		}
	}
	const first = 1500
	for reason, n := range map[string]int{
		"missing": first + want.Missing, "late": want.Late, "overdue": want.Overdue,
	} {
		// On a loaded machine more tasks may have been late.
		if got[reason] < float64(n) || got[reason] > float64(n) && reason != "late" {
			t.Errorf("the metrics count %v repairs with the reason %s, want %d", got[reason], reason, n)
		}
	}
}

// shiftScores moves all tasks, as a failover to a Redis with another clock does. If the new clock is 2 minutes behind,
// every task is 2 minutes late.
func shiftScores(t *testing.T, a *testApp, by time.Duration) {
	t.Helper()
	members, err := a.Redis.ZRangeWithScores(t.Context(), dueKey, 0, -1).Result()
	testenv.Must(t, err)
	for i := range members {
		members[i].Score += float64(by.Microseconds())
	}
	testenv.Must(t, a.Redis.ZAdd(t.Context(), dueKey, members...).Err())
}

// TestSweepsAfterAWipe wipes Redis. A sweep adds the tasks of the orders that are due soon, and later ones add the
// other tasks when they are due soon.
func TestSweepsAfterAWipe(t *testing.T) {
	a := newTestApp(t, testenv.Redis(t), 1)
	soon, later := pendingOrders(t, a, 10, time.Minute), pendingOrders(t, a, 5, time.Hour)
	scheduleAll(t, a, soon, time.Minute)
	scheduleAll(t, a, later, time.Hour)
	testenv.Must(t, a.Redis.FlushDB(t.Context()).Err())
	if report := sweep(t, a); report.Missing != len(soon) {
		t.Errorf("after the wipe a sweep reported %+v, want %d tasks added", report, len(soon))
	}
	if intact, err := delay.Intact(t.Context(), a.Kinds[0].Queue); err != nil || !intact[0] {
		t.Errorf("after the sweep Intact returns %v, %v; want true", intact, err)
	}
	testenv.Exec(t, a.Pool, `UPDATE orders SET expires_at = expires_at - interval '59 min' WHERE id = ANY ($1)`, later)
	if report := sweep(t, a); report.Missing != len(later) {
		t.Errorf("59 minutes later a sweep reported %+v, want %d tasks added", report, len(later))
	}
	checkScheduled(t, a)
}

// TestSweepRestoresOneNode wipes one node of a cluster. A sweep restores the tasks of the node's shards.
func TestSweepRestoresOneNode(t *testing.T) {
	testenv.Slow(t, "starts a Redis Cluster")
	const n, shards = 500, 8
	nodes := testenv.RedisCluster(t)
	a, _ := newFilledApp(t, fmt.Sprintf("redis://%s?addr=%s&addr=%s", nodes[0], nodes[1], nodes[2]), shards, n)
	node := redis.NewClient(&redis.Options{Addr: nodes[0]})
	defer node.Close()
	keys, err := node.DBSize(t.Context()).Result()
	testenv.Must(t, err)
	testenv.Must(t, node.FlushAll(t.Context()).Err())
	report := sweep(t, a)
	if report.Missing == 0 || report.Missing == n || keys == 0 {
		t.Errorf("after the wipe of a node with %d keys the sweep reported %+v, want some tasks missing", keys, report)
	}
	awaitSync(t, a)
	checkScheduled(t, a)
}

func TestOneSweepAtATime(t *testing.T) {
	databaseURL, redisURL := testenv.Postgres(t), testenv.Redis(t)
	a, b := openApp(t, databaseURL, redisURL, 1), openApp(t, databaseURL, redisURL, 1)
	if last, _, err := b.Kinds[0].Reconciler.Last(t.Context()); err != nil || last != nil {
		t.Errorf("before the first sweep the last report is %v, %v; want none", last, err)
	}
	holder, err := a.Pool.Conn(t.Context())
	testenv.Must(t, err)
	defer holder.Close()
	const lockName = "reconcile " + order.CancelKind
	if _, err := holder.ExecContext(t.Context(), `SELECT pg_advisory_lock(hashtextextended($1, 0))`,
		lockName); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Kinds[0].Reconciler.Sweep(t.Context()); !errors.Is(err, reconcile.ErrSweeping) {
		t.Errorf("a sweep during another one returned %v, want ErrSweeping", err)
	}
	// The session that holds the lock ends, as if its process had died.
	testenv.Exec(t, a.Pool, `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'`)
	testenv.Eventually(t, "the lock is free", func() bool {
		_, err := b.Kinds[0].Reconciler.Sweep(t.Context())
		return err == nil
	})
	if last, _, err := a.Kinds[0].Reconciler.Last(t.Context()); err != nil || last == nil ||
		last.Outcome != reconcile.OK {
		t.Errorf("the other instance's report is %v, %v; want one that is ok", last, err)
	}
}

// TestSweepsThroughPgBouncer lets two processes sweep through PgBouncer in transaction mode, where each statement may
// reach another session of the server. No lock stays behind. Migrations need a session of their own, so the command
// migrate fails.
func TestSweepsThroughPgBouncer(t *testing.T) {
	config, err := os.ReadFile("../../internal/postgres/pgbouncer.ini")
	testenv.Must(t, err)
	databaseURL, redisURL := testenv.Postgres(t), testenv.Redis(t)
	direct := openApp(t, databaseURL, redisURL, 1)
	ids := pendingOrders(t, direct, 10, -time.Hour)
	pooledURL := testenv.PgBouncer(t, databaseURL, string(config)) + "&default_query_exec_mode=cache_describe"

	var sweeps errgroup.Group
	for range 2 {
		p := openApp(t, pooledURL, redisURL, 1)
		for range 2 { // more sessions than one
			sweeps.Go(func() error {
				for swept := 0; swept < 3; swept++ {
					if _, err := p.Kinds[0].Reconciler.Sweep(t.Context()); errors.Is(err, reconcile.ErrSweeping) {
						swept--
					} else if err != nil {
						return err
					}
				}
				return nil
			})
		}
	}
	testenv.Must(t, sweeps.Wait())
	if n := testenv.Query[int](t, direct.Pool,
		`SELECT count(*) FROM orders WHERE status = 'cancelled'`); n != len(ids) {
		t.Errorf("%d orders are cancelled, want %d", n, len(ids))
	}
	if n := testenv.Query[int](t, direct.Pool, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`); n != 0 {
		t.Errorf("after the sweeps there are %d advisory locks, want none", n)
	}

	var out strings.Builder
	if code := runCommand(t.Context(), []string{"migrate", "--database-url", pooledURL}, &out); code != 1 ||
		!strings.Contains(out.String(), "SHOP_DATABASE_URL") {
		t.Errorf("migrate returns %d and prints %q, want 1 and the option to change", code, out.String())
	}
}

// TestNoFalseRepairs sweeps a queue that needs no repairs many times.
func TestNoFalseRepairs(t *testing.T) {
	a, _ := newFilledApp(t, testenv.Redis(t), 4, 3000)
	swept, enough := 0, testenv.Rounds(5, 20)
	testenv.Eventually(t, fmt.Sprintf("%d sweeps without an error", enough), func() bool { // a loaded machine may not answer a sweep in time
		report := sweep(t, a)
		if report.Repairs() != 0 {
			t.Fatalf("reported %+v, want no repairs", report)
		}
		if report.Outcome == reconcile.OK {
			swept++
		}
		return swept == enough
	})
}

// scheduleAll schedules a task for each id, due after left.
func scheduleAll(t testing.TB, a *testApp, ids []string, left time.Duration) {
	t.Helper()
	for page := range slices.Chunk(ids, 1000) {
		msgs := make([]delay.Message, len(page))
		for i, id := range page {
			msgs[i] = delay.In(id, left)
		}
		testenv.Must(t, a.Kinds[0].Queue.Schedule(t.Context(), msgs...))
	}
}
