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

// TestHungSweepLosesItsLock has a sweep hang while it holds the lock, and another instance that wants it.
func TestHungSweepLosesItsLock(t *testing.T) {
	db, err := sql.Open("pgx", testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	table, hanging := newFakes(1)
	hung, goOn := make(chan struct{}), make(chan struct{})
	hanging.during = func(method string) {
		if method == "Locate" {
			close(hung)
			<-goOn
		}
	}
	_, working := newFakes(1)
	a, b := newReconciler(t, table, hanging), newReconciler(t, table, working)
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
			t.Fatalf("sweep beside one that hangs: %v", err)
		}
		<-tick.C
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Errorf("the sweep that goes on: %v", err)
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

// TestRunSweepsAfterASkip: a sweep of the schedule takes so long that the one which is wanted meanwhile is skipped. There
// are sweeps after it.
func TestRunSweepsAfterASkip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, queue := newFakes(1)
		r := newReconciler(t, table, queue)
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
			t.Errorf("%d sweeps in a minute, want one each 5 s", n)
		}
	})
}

// TestRunSweepsTwiceInEachLookahead has a schedule that says nothing, and sweeps that take long or panic.
func TestRunSweepsTwiceInEachLookahead(t *testing.T) {
	const lookahead = 10 * time.Second
	sweeps := map[string]struct {
		sweep func()
		took  time.Duration
	}{
		"fast ones":            {sweep: func() {}},
		"ones that panic":      {sweep: func() { panic("broken") }},
		"slow ones":            {sweep: func() { <-time.After(3 * time.Second) }, took: 3 * time.Second},
		"slower than it wants": {sweep: func() { <-time.After(7 * time.Second) }, took: 7 * time.Second},
	}
	for name, test := range sweeps {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table, queue := newFakes(1)
				r := newReconciler(t, table, queue)
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

// TestRunSweepsByTheSchedule: where that sweeps often enough, there are no other sweeps.
func TestRunSweepsByTheSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, queue := newFakes(1)
		r := newReconciler(t, table, queue)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute+time.Second)
		defer cancel()
		var sweeps atomic.Int64
		if err := r.run(ctx, func(context.Context) { sweeps.Add(1) }); err != nil {
			t.Fatal(err)
		}
		if n := sweeps.Load(); n != 21 {
			t.Errorf("%d sweeps in ten minutes, want one at the start and one each 30 s", n)
		}
	})
}
