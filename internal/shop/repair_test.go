package shop_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/timeout"
)

// These tests sweep with a real PostgreSQL and a real Redis. Those of package reconcile have the other repairs.

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
