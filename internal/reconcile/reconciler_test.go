package reconcile

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/testenv"
)

// TestHungSweepLosesItsLock lets a sweep hang while it has the lock. Another reconciler gets the lock.
func TestHungSweepLosesItsLock(t *testing.T) {
	db, err := sql.Open("pgx", testenv.Postgres(t))
	testenv.Must(t, err)
	defer db.Close()
	hanging, working := newFixture(t, 1), newFixture(t, 1)
	hung, goOn := make(chan struct{}), make(chan struct{})
	hanging.before = func(step string) {
		if step == "Locate" {
			close(hung)
			<-goOn
		}
	}
	a, b := newTestReconciler(t, hanging), newTestReconciler(t, working)
	a.db, b.db = db, db
	a.lockIdle = 500 * time.Millisecond
	ended := make(chan error, 1)
	go func() {
		_, err := a.Sweep(t.Context())
		ended <- err
	}()
	<-hung

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := b.Sweep(ctx)
		if err == nil {
			break
		}
		if !errors.Is(err, ErrSweeping) {
			t.Fatalf("a sweep while another one hangs returned %v, want ErrSweeping", err)
		}
		<-tick.C
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Errorf("the sweep that hung returned %v, want no error", err)
	}
}

// TestSweepOnAHungDatabase makes no connection to the database. A sweep does not wait for its lock for ever, so that
// later sweeps can try again.
func TestSweepOnAHungDatabase(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestReconciler(t, newSimulatedFixture(t, 0))
		r.db = testenv.HungDB(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := r.Sweep(ctx); err == nil || ctx.Err() != nil {
			t.Errorf("Sweep returns %v, and an hour has passed: %v; want an error before", err, ctx.Err() != nil)
		}
	})
}

// TestSweepIsSkipped lets another process sweep. Meanwhile no other sweep begins, and the gauge of stuck rows has the
// number of the last sweep that has ended.
func TestSweepIsSkipped(t *testing.T) {
	db, err := sql.Open("pgx", testenv.Postgres(t))
	testenv.Must(t, err)
	defer db.Close()
	f := newFixture(t, 0)
	f.table.overdue = rows(3, locked)
	r, other := newTestReconciler(t, f), newTestReconciler(t, f)
	r.db, other.db = db, db
	r.sweepAndLog(t.Context())
	for _, stuck := range []int{3, 1} {
		tx, err := other.lock(t.Context())
		testenv.Must(t, err)
		if _, err := r.Sweep(t.Context()); !errors.Is(err, ErrSweeping) {
			t.Errorf("a sweep during another one returned %v, want ErrSweeping", err)
		}
		r.sweepAndLog(t.Context())
		if got := testutil.ToFloat64(r.metrics.stuck); got != float64(stuck) {
			t.Errorf("the gauge counts %v stuck rows after a sweep was skipped, want %d", got, stuck)
		}
		if n := testutil.ToFloat64(r.metrics.sweeps.WithLabelValues("partial")); n != 1 {
			t.Errorf("%v partial sweeps are counted, want 1", n)
		}
		testenv.Must(t, other.recordAndUnlock(t.Context(), tx, Report{Outcome: Partial, Failed: 1}))
	}
}

// TestAgeOfTheLastSweep records reports of machines whose clocks are wrong. The age is by the database's clock.
func TestAgeOfTheLastSweep(t *testing.T) {
	db, err := sql.Open("pgx", testenv.Postgres(t))
	testenv.Must(t, err)
	defer db.Close()
	r := newTestReconciler(t, newFixture(t, 0))
	r.db = db
	if last, _, err := r.Last(t.Context()); err != nil || last != nil {
		t.Errorf("before the first sweep the last report is %v, %v; want none", last, err)
	}
	for _, wrong := range []time.Duration{-time.Hour, time.Hour} {
		const took = 20 // seconds
		tx, err := r.lock(t.Context())
		testenv.Must(t, err)
		testenv.Must(t, r.recordAndUnlock(t.Context(), tx, Report{StartedAt: time.Now().Add(wrong), Took: took,
			Outcome: OK}))
		last, age, err := r.Last(t.Context())
		testenv.Must(t, err)
		if last.Took != took || age < took*time.Second || age > (took+10)*time.Second {
			t.Errorf("with a clock that is wrong by %v: the sweep took %v s and began %v ago, want %d s, and that "+
				"long ago",
				wrong, last.Took, age, took)
		}
	}
}

// never is a schedule without times.
type never struct{}

func (never) Next(time.Time) time.Time { return time.Time{} }

// TestRunSweepsTwiceInEachLookahead uses a schedule without times, and sweeps that take long or panic.
func TestRunSweepsTwiceInEachLookahead(t *testing.T) {
	const lookahead = 10 * time.Second
	sweeps := map[string]struct {
		sweep func()
		took  time.Duration
	}{
		"fast":                {sweep: func() {}},
		"panicking":           {sweep: func() { panic("broken") }},
		"slow":                {sweep: func() { <-time.After(3 * time.Second) }, took: 3 * time.Second},
		"slower than the gap": {sweep: func() { <-time.After(7 * time.Second) }, took: 7 * time.Second},
	}
	for name, test := range sweeps {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newTestReconciler(t, newSimulatedFixture(t, 1))
				r.schedule, r.interval, r.cfg.Lookahead = never{}, time.Hour, lookahead
				ctx, cancel := context.WithTimeout(t.Context(), 10*lookahead)
				defer cancel()
				var began []time.Time
				if err := r.run(ctx, func(context.Context) {
					began = append(began, time.Now())
					test.sweep()
				}); err != nil {
					t.Fatal(err)
				}
				began = append(began, time.Now())
				most := max(lookahead/2, test.took)
				for i := range began[1:] {
					if gap := began[i+1].Sub(began[i]); gap > most {
						t.Errorf("%v passed between sweeps %d and %d, want at most %v", gap, i, i+1, most)
					}
				}
			})
		})
	}
}

// TestRunSweepsByTheSchedule counts the sweeps of a schedule whose intervals are short enough. There are no others.
func TestRunSweepsByTheSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTestReconciler(t, newSimulatedFixture(t, 1))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+time.Second)
		defer cancel()
		var sweeps atomic.Int64
		testenv.Must(t, r.run(ctx, func(context.Context) { sweeps.Add(1) }))
		if n := sweeps.Load(); n != 21 {
			t.Errorf("%d sweeps in ten minutes, want 21: one at the start and one every 30 s", n)
		}
	})
}

// TestProbe runs two reconcilers for twenty seconds. They share a probe, which sends two commands every two seconds. A
// reconciler sweeps if a marker of its queue is missing, both if Redis does not answer, and both once if its
// replication id has changed, also while it was away.
func TestProbe(t *testing.T) {
	const probes = 10
	tests := map[string]struct {
		happens func(t *testing.T, f *fixture)
		want    [2]int // sweeps of each reconciler, without the one at its start
	}{
		"intact": {func(*testing.T, *fixture) {}, [2]int{0, 0}},
		"a shard was wiped": {func(t *testing.T, f *fixture) { f.do(t, "DEL", "delay:{test.other:2}:marker") },
			[2]int{0, probes}},
		"Redis was wiped": {func(t *testing.T, f *fixture) { f.wipe(t) }, [2]int{probes, probes}},
		"Redis returns no markers": {func(_ *testing.T, f *fixture) { f.fails["Intact"] = true },
			[2]int{probes, probes}},
		"Redis is away for two probes": {func(_ *testing.T, f *fixture) {
			time.AfterFunc(5*time.Second, func() { f.away.Store(true) })
			time.AfterFunc(9*time.Second, func() { f.away.Store(false) })
		}, [2]int{3, 3}},
		"Redis is away at first": {func(_ *testing.T, f *fixture) {
			f.away.Store(true)
			time.AfterFunc(3*time.Second, func() { f.away.Store(false) })
		}, [2]int{2, 2}},
		"Redis restarts while it is away": {func(_ *testing.T, f *fixture) {
			time.AfterFunc(5*time.Second, func() { f.away.Store(true) })
			time.AfterFunc(9*time.Second, func() {
				f.replid.Store("restarted")
				f.away.Store(false)
			})
		}, [2]int{3, 3}},
		"a replica was promoted": {func(_ *testing.T, f *fixture) {
			time.AfterFunc(5*time.Second, func() { f.replid.Store("promoted") })
		}, [2]int{1, 1}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newSimulatedFixture(t, 1)
				other, err := delay.NewQueue(f.rdb, "test.other", 3)
				testenv.Must(t, err)
				testenv.Must(t, other.MarkIntact(t.Context()))
				reconcilers := []*Reconciler{newTestReconciler(t, f), newTestReconciler(t, f)}
				reconcilers[1].queue = other
				sent := 0
				f.replid.Store("former")
				f.before = func(string) { sent++ }
				test.happens(t, f)

				ctx, cancel := context.WithTimeout(t.Context(), probes*probeEvery+time.Second)
				defer cancel()
				var sweeps [2]int
				var running errgroup.Group
				for i, r := range reconcilers {
					r.schedule = never{}
					running.Go(func() error { return r.run(ctx, func(context.Context) { sweeps[i]++ }) })
				}
				running.Go(func() error { return probe(ctx, reconcilers) })
				testenv.Must(t, running.Wait())
				sweeps[0], sweeps[1] = sweeps[0]-1, sweeps[1]-1
				if sweeps != test.want {
					t.Errorf("the reconcilers swept %v times, want %v", sweeps, test.want)
				}
				if most := 2 * (probes + 1); sent > most {
					t.Errorf("the probe sent %d commands, want at most %d", sent, most)
				}
			})
		})
	}
}
