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

	"example.com/shop/internal/testenv"
)

// TestHungSweepLosesItsLock lets a sweep hang while it holds the lock. Another reconciler gets the lock.
func TestHungSweepLosesItsLock(t *testing.T) {
	db, err := sql.Open("pgx", testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	hanging, working := newFixture(t, 1), newFixture(t, 1)
	hung, goOn := make(chan struct{}), make(chan struct{})
	hanging.before = func(step string) {
		if step == "Locate" {
			close(hung)
			<-goOn
		}
	}
	a, b := newReconciler(t, hanging), newReconciler(t, working)
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
		if !errors.Is(err, ErrBusy) {
			t.Fatalf("a sweep while another one hangs returned %v, want ErrBusy", err)
		}
		<-tick.C
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Errorf("the sweep that hung returned %v, want no error", err)
	}
}

// never is a schedule without activations.
type never struct{}

func (never) Next(time.Time) time.Time { return time.Time{} }

// once is a schedule with one activation.
type once struct{ at time.Time }

func (o once) Next(t time.Time) time.Time {
	if t.Before(o.at) {
		return o.at
	}
	return time.Time{}
}

// TestRunSweepsAfterASkip runs a sweep that takes so long that the next one is skipped. Later sweeps still run.
func TestRunSweepsAfterASkip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReconciler(t, newSimulatedFixture(t, 1))
		r.schedule, r.cfg.Lookahead, r.cfg.Probe = once{time.Now().Add(2 * time.Second)}, 10*time.Second, time.Hour
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var sweeps atomic.Int64
		if err := r.run(ctx, func(context.Context) {
			if sweeps.Add(1) == 2 {
				<-time.After(7 * time.Second)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if n := sweeps.Load(); n < 10 {
			t.Errorf("%d sweeps in a minute, want at least 10: one every 5 s", n)
		}
	})
}

// TestRunSweepsTwiceInEachLookahead uses a schedule without activations, and sweeps that take long or panic.
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
				r := newReconciler(t, newSimulatedFixture(t, 1))
				r.schedule, r.gap, r.cfg.Lookahead, r.cfg.Probe = never{}, time.Hour, lookahead, 3*lookahead
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
		r := newReconciler(t, newSimulatedFixture(t, 1))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+time.Second)
		defer cancel()
		var sweeps atomic.Int64
		if err := r.run(ctx, func(context.Context) { sweeps.Add(1) }); err != nil {
			t.Fatal(err)
		}
		if n := sweeps.Load(); n != 21 {
			t.Errorf("%d sweeps in ten minutes, want 21: one at the start and one every 30 s", n)
		}
	})
}
