package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/testenv"
)

// These tests lose or distort what Redis holds and have one sweep repair it.

// dueKey is the key of the due tasks of a queue with one shard.
const dueKey = "delay:{order.cancel:0}:due"

// sweep sweeps and returns the report without what differs each time.
func sweep(t testing.TB, a *app) reconcile.Report {
	t.Helper()
	report, err := a.reconciler.Sweep(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	report.StartedAt, report.Took = time.Time{}, 0
	return report
}

// filled returns an app with n pending orders, due within the look-ahead, that Redis knows.
func filled(t testing.TB, redisURL string, shards, n int) (*app, []string) {
	t.Helper()
	a := newTestApp(t, redisURL, shards)
	ids := pendingOrders(t, a, n, time.Minute)
	if got, want := sweep(t, a), (reconcile.Report{Full: true, Outcome: reconcile.OK, Examined: n, Missing: n}); got != want {
		t.Fatalf("first sweep: %+v, want %+v", got, want)
	}
	return a, ids
}

// scheduledRight checks that every order's task is due when the order is, but for the time that messages take.
func scheduledRight(t testing.TB, a *app) {
	t.Helper()
	ids, left, _, err := a.store.Pending(t.Context(), "", -1, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	places, err := a.queue.Locate(t.Context(), ids)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range places {
		if p.State != delay.Scheduled || p.Left > left[i]+500*time.Millisecond {
			t.Errorf("order %s has %v left, its task is %+v", ids[i], left[i], p)
		}
	}
}

func TestSweepRepairsRedis(t *testing.T) {
	const n = 1500 // more than a page
	ok := reconcile.Report{Outcome: reconcile.OK, Examined: n}
	tests := map[string]struct {
		lose   func(t *testing.T, a *app, ids []string)
		report func(*reconcile.Report)
	}{
		"in sync": {
			func(*testing.T, *app, []string) {},
			func(*reconcile.Report) {},
		},
		"members deleted": {
			func(t *testing.T, a *app, ids []string) {
				must(t, a.rdb.ZRem(t.Context(), dueKey, ids[3], ids[900]).Err())
			},
			func(r *reconcile.Report) { r.Missing = 2 },
		},
		"scores moved late": {
			func(t *testing.T, a *app, ids []string) {
				must(t, a.rdb.ZIncrBy(t.Context(), dueKey, 1e6, ids[3]).Err()) // a second
			},
			func(r *reconcile.Report) { r.Late = 1 },
		},
		"a clock that jumped back 2 minutes": {
			func(t *testing.T, a *app, _ []string) { shiftScores(t, a, 2*time.Minute) },
			func(r *reconcile.Report) { r.Late = n },
		},
		"a clock that jumped ahead 2 minutes": { // early is harmless: the order is not due, and says so
			func(t *testing.T, a *app, _ []string) { shiftScores(t, a, -2*time.Minute) },
			func(*reconcile.Report) {},
		},
		"wiped": {
			func(t *testing.T, a *app, _ []string) { must(t, a.rdb.FlushDB(t.Context()).Err()) },
			func(r *reconcile.Report) { r.Full, r.Missing = true, n },
		},
		"orphaned members": {
			func(t *testing.T, a *app, _ []string) {
				for _, id := range []string{uuid.NewString(), "no-uuid"} {
					must(t, a.queue.Schedule(t.Context(), delay.In(id, time.Minute)))
				}
			},
			func(r *reconcile.Report) { r.Orphaned = 2 },
		},
		"a dead letter": {
			func(t *testing.T, a *app, ids []string) {
				must(t, a.queue.Schedule(t.Context(), delay.In(ids[3], -time.Hour)))
				b, err := a.queue.Claim(t.Context(), 0, 1, time.Minute)
				must(t, err)
				_, err = a.queue.Bury(t.Context(), b, delay.Burial{ID: ids[3], Err: "broken"})
				must(t, err)
			},
			func(r *reconcile.Report) { r.Dead = 1 },
		},
		"leased": {
			func(t *testing.T, a *app, ids []string) {
				must(t, a.queue.Schedule(t.Context(), delay.In(ids[3], -time.Hour)))
				_, err := a.queue.Claim(t.Context(), 0, 1, time.Minute)
				must(t, err)
			},
			func(*reconcile.Report) {},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			a, ids := filled(t, testenv.Redis(t), 1, n)
			test.lose(t, a, ids)
			want := ok
			test.report(&want)
			if got := sweep(t, a); got != want {
				t.Errorf("reported %+v, want %+v", got, want)
			}
			if want.Missing+want.Late > 0 {
				scheduledRight(t, a)
			}
			want = reconcile.Report{Outcome: reconcile.OK, Examined: n, Dead: want.Dead}
			if got := sweep(t, a); got != want {
				t.Errorf("reported %+v the second time, want %+v", got, want)
			}
			countsRepairs(t, a, test.report)
		})
	}
}

// countsRepairs checks the metrics against what a case's report says, and the n tasks of the first sweep.
func countsRepairs(t *testing.T, a *app, report func(*reconcile.Report)) {
	t.Helper()
	want := reconcile.Report{}
	report(&want)
	got := map[string]float64{}
	families, err := a.registry.Gather()
	must(t, err)
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
		"missing": first + want.Missing, "late": want.Late, "orphaned": want.Orphaned, "overdue": want.Overdue,
	} {
		if got[reason] != float64(n) {
			t.Errorf("%v repairs counted as %s, want %d", got[reason], reason, n)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// shiftScores makes the tasks look as they do to a Redis whose clock is apart: a failover to a server that
// is 2 minutes behind leaves every task 2 minutes late.
func shiftScores(t *testing.T, a *app, by time.Duration) {
	t.Helper()
	members, err := a.rdb.ZRangeWithScores(t.Context(), dueKey, 0, -1).Result()
	must(t, err)
	for i := range members {
		members[i].Score += float64(by.Microseconds())
	}
	must(t, a.rdb.ZAdd(t.Context(), dueKey, members...).Err())
}

// TestSweepRestoresOneNode wipes one master of a cluster: its shards are filled again.
func TestSweepRestoresOneNode(t *testing.T) {
	const n, shards = 500, 8
	nodes := testenv.RedisCluster(t)
	a, _ := filled(t, fmt.Sprintf("redis://%s?addr=%s&addr=%s", nodes[0], nodes[1], nodes[2]), shards, n)
	node := redis.NewClient(&redis.Options{Addr: nodes[0]})
	defer node.Close()
	keys, err := node.DBSize(t.Context()).Result()
	must(t, err)
	must(t, node.FlushAll(t.Context()).Err())
	report := sweep(t, a)
	if !report.Full || report.Missing == 0 || report.Missing == n || keys == 0 {
		t.Errorf("reported %+v after the wipe of a node with %d keys, want a full sweep that finds some missing", report, keys)
	}
	scheduledRight(t, a)
}

// TestSweepWithRedisDown: overdue orders are cancelled in SQL, once and with their stock.
func TestSweepWithRedisDown(t *testing.T) {
	server := testenv.RedisServer(t)
	a := newTestApp(t, server.URL(), 1)
	pendingOrders(t, a, 1200, -time.Minute)
	pendingOrders(t, a, 5, time.Minute)
	must(t, server.Kill())
	report := sweep(t, a)
	if report.Outcome != reconcile.Degraded || report.Overdue != 1200 || report.Error == "" {
		t.Errorf("reported %+v, want degraded with 1200 overdue", report)
	}
	if left, err := a.store.Backlog(t.Context()); err != nil || left.Pending != 5 || left.OldestOverdue != 0 {
		t.Errorf("%+v, %v; want the 5 that are not due", left, err)
	}
	violations, err := a.store.Invariants(t.Context(), time.Second)
	if err != nil || len(violations) > 0 {
		t.Errorf("violations %v, %v", violations, err)
	}
	late, err := a.store.Lateness(t.Context())
	if err != nil || late.Reconciler.Count != 1200 || late.Worker.Count != 0 {
		t.Errorf("lateness %+v, %v; want all by the reconciler", late, err)
	}
}

// TestReconcilerRunsWhenRedisIsWiped starts the loops and lets a probe find the wipe, long before the schedule.
func TestReconcilerRunsWhenRedisIsWiped(t *testing.T) {
	a, ids := filled(t, testenv.Redis(t), 1, 50)
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { ended <- a.reconciler.Run(ctx) }()
	must(t, a.rdb.FlushDB(t.Context()).Err())
	eventually(t, "tasks are back", func() bool {
		n, err := a.rdb.ZCard(t.Context(), dueKey).Result()
		return err == nil && int(n) == len(ids)
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// panickyTable panics in its first sweep.
type panickyTable struct {
	orderTable
	sweeps *atomic.Int64
}

func (p panickyTable) Overdue(ctx context.Context, after string, grace time.Duration, limit int) (ids []string, next string, err error) {
	if p.sweeps.Add(1) == 1 {
		panic("first sweep")
	}
	return p.orderTable.Overdue(ctx, after, grace, limit)
}

// TestPanicDoesNotStopTheSweeps: in cron v3.0.1 one panic stops the job for good if Recover is not the
// innermost wrapper.
func TestPanicDoesNotStopTheSweeps(t *testing.T) {
	a := newTestApp(t, testenv.Redis(t), 1)
	must(t, a.queue.BeginRestore(t.Context())) // intact, so that no probe sweeps
	must(t, a.queue.EndRestore(t.Context()))
	table := panickyTable{orderTable{a.store, a.orders}, new(atomic.Int64)}
	r, err := reconcile.New(a.db, table, cancelQueue{a.queue}, reconcile.Config{Schedule: "@every 1s"}, a.log, nil)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	eventually(t, "sweeps after the panic", func() bool { return table.sweeps.Load() >= 3 })
	cancel()
	must(t, <-ended)
}

func TestOneSweepAtATime(t *testing.T) {
	databaseURL, redisURL := testenv.Postgres(t), testenv.Redis(t)
	a, b := joinApp(t, databaseURL, redisURL, 1), joinApp(t, databaseURL, redisURL, 1)
	if last, err := b.reconciler.Last(t.Context()); err != nil || last != nil {
		t.Errorf("before the first sweep: %v, %v", last, err)
	}
	holder, err := a.db.Conn(t.Context())
	must(t, err)
	defer holder.Close()
	if _, err := holder.ExecContext(t.Context(), `SELECT pg_advisory_lock(hashtextextended('reconcile order.cancel', 0))`); err != nil {
		t.Fatal(err)
	}
	if _, err := b.reconciler.Sweep(t.Context()); !errors.Is(err, reconcile.ErrBusy) {
		t.Errorf("sweep beside another: %v, want ErrBusy", err)
	}
	// The other dies: its session, and with it the lock, is gone.
	mustExec(t, a, `SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'`)
	eventually(t, "the lock is free", func() bool {
		_, err := b.reconciler.Sweep(t.Context())
		return err == nil
	})
	if last, err := a.reconciler.Last(t.Context()); err != nil || last == nil || last.Outcome != reconcile.OK {
		t.Errorf("the other instance's report: %v, %v", last, err)
	}
}

// TestNoFalseRepairs sweeps a queue in sync again and again.
func TestNoFalseRepairs(t *testing.T) {
	a, _ := filled(t, testenv.Redis(t), 4, 3000)
	// A machine under load may have let a task wait on its way to Redis, which makes it late by that.
	eventually(t, "a queue in sync", func() bool { return sweep(t, a).Repairs() == 0 })
	for range 20 {
		if report := sweep(t, a); report.Repairs() != 0 || report.Outcome != reconcile.OK {
			t.Fatalf("reported %+v", report)
		}
	}
}
