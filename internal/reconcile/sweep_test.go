package reconcile

import (
	"context"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/testenv"
)

func TestSweepRepairs(t *testing.T) {
	const pending = 2*pageSize + 7
	all := Report{Outcome: OK, Examined: pending}
	with := func(change func(*Report)) Report {
		r := all
		change(&r)
		return r
	}
	tests := map[string]struct {
		damage func(t *testing.T, f *fixture)
		want   Report
	}{
		"nothing": {func(*testing.T, *fixture) {}, all},
		"missing": {func(t *testing.T, f *fixture) {
			f.do(t, "ZREM", key("due"), "0", "2000")
		}, with(func(r *Report) { r.Missing = 2 })},
		"late": {func(t *testing.T, f *fixture) {
			f.move(t, "1", "due", time.Hour+2*time.Minute)
		}, with(func(r *Report) { r.Late = 1 })},
		"later than the deadline by less than the tolerance": {func(t *testing.T, f *fixture) {
			f.move(t, "1", "due", time.Hour+tolerance-100*time.Millisecond)
		}, all},
		"early": {func(t *testing.T, f *fixture) {
			f.move(t, "1", "due", -time.Hour)
		}, all},
		"late by more than any duration": {func(t *testing.T, f *fixture) {
			f.do(t, "ZADD", key("due"), "+inf", "1")
		}, with(func(r *Report) { r.Late = 1 })},
		"failed, and waits for its next attempt": {func(t *testing.T, f *fixture) {
			f.move(t, "1", "due", 2*time.Hour)
			f.do(t, "HSET", key("attempts"), "1", 1)
		}, all},
		"overdue, and waits for its next attempt": {func(t *testing.T, f *fixture) {
			f.table.left[1] = -time.Second
			f.move(t, "1", "due", time.Minute)
		}, all},
		"overdue and missing": {func(t *testing.T, f *fixture) { // perhaps timed out since it was read: not counted
			f.table.left[1] = -time.Second
			f.do(t, "ZREM", key("due"), "1")
		}, all},
		"leased for longer than until the deadline": {func(t *testing.T, f *fixture) {
			f.move(t, "1", "leased", 2*time.Hour)
		}, all},
		"dead": {func(t *testing.T, f *fixture) {
			f.move(t, "1", "dead", 0)
		}, with(func(r *Report) { r.Dead = 1 })},
		"overdue": {func(_ *testing.T, f *fixture) {
			f.table.overdue = rows(2*pageSize+1, good)
		}, with(func(r *Report) { r.Overdue = 2*pageSize + 1 })},
		"wiped": {func(t *testing.T, f *fixture) {
			f.wipe(t)
		}, with(func(r *Report) { r.Missing = pending })},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, pending)
			test.damage(t, f)
			if got := sweepOnce(t, f); got != test.want {
				t.Errorf("reported %+v, want %+v", got, test.want)
			}
			depth, err := f.queue.Depth(t.Context())
			if tasks := depth.Scheduled + depth.Due + depth.Leased + depth.Dead; err != nil || tasks != pending {
				t.Errorf("the queue holds %+v, %v; want a task of each of the %d rows", depth, err, pending)
			}
			// The next sweep repairs nothing. A dead letter is still reported.
			want := Report{Outcome: OK, Examined: pending, Dead: test.want.Dead}
			if got := sweepOnce(t, f); got != want {
				t.Errorf("reported %+v the second time, want %+v", got, want)
			}
			other := func(within time.Duration) bool { return within != defaultLookahead }
			if slices.ContainsFunc(f.table.withins, other) {
				t.Errorf("the sweeps read rows that are due within %v, want within %v", f.table.withins,
					defaultLookahead)
			}
		})
	}
}

// TestSweepWithoutTheQueue lets each step of the queue fail. The sweep is degraded and times out the overdue rows. If
// a step failed before the end, the sweep sets no marker.
func TestSweepWithoutTheQueue(t *testing.T) {
	for _, step := range []string{"Intact", "Locate", "Schedule", "MarkIntact"} {
		t.Run(step, func(t *testing.T) {
			f := newFixture(t, 10)
			f.wipe(t)
			f.table.overdue = rows(5, good)
			f.fails[step] = true
			report := sweepOnce(t, f)
			if report.Outcome != Degraded || report.Error == "" || report.Overdue != 5 {
				t.Errorf("reported %+v, want degraded with 5 overdue", report)
			}
			if f.intact(t) {
				t.Error("the queue is intact, want that it has no marker before all tasks are compared")
			}
			clear(f.fails)
			report = sweepOnce(t, f)
			depth, err := f.queue.Depth(t.Context())
			if err != nil || report.Outcome != OK || depth != (delay.Depth{Scheduled: 10}) || !f.intact(t) {
				t.Errorf("the next sweep reported %+v, and the queue holds %+v, %v; want ok, 10 scheduled tasks and "+
					"a marker", report, depth, err)
			}
		})
	}
}

func TestSweepWithoutTheTable(t *testing.T) {
	for _, method := range []string{"Overdue", "TimeOut", "Pending"} {
		t.Run(method, func(t *testing.T) {
			f := newFixture(t, 10)
			f.wipe(t)
			f.table.overdue = rows(1, good)
			f.table.fails[method] = true
			if report := sweepOnce(t, f); report.Outcome != Failed || report.Error == "" {
				t.Errorf("reported %+v, want failed", report)
			}
			if method == "Pending" && f.intact(t) {
				t.Error("the queue is intact although no task was compared")
			}
		})
	}
}

// TestWipeDuringASweep wipes Redis when a sweep has compared two pages of three. The end of the sweep must not hide
// the wipe, so that the next probe starts another sweep.
func TestWipeDuringASweep(t *testing.T) {
	f := newFixture(t, 3*pageSize)
	located := 0
	f.before = func(step string) {
		if step == "Locate" {
			if located++; located == 3 {
				f.wipe(t)
			}
		}
	}
	if report := sweepOnce(t, f); report.Missing != pageSize {
		t.Errorf("the sweep reported %+v, want the tasks of the last page added", report)
	}
	if f.intact(t) {
		t.Fatal("the queue is intact although two pages are lost")
	}
	f.before = func(string) {}
	if report := sweepOnce(t, f); report.Missing != 2*pageSize || !f.intact(t) {
		t.Errorf("the next sweep reported %+v, want the tasks of two pages added, and the marker", report)
	}
}

// TestSlowRedisMakesNoTaskLate delays a reply of Redis for longer than the tolerance. The tasks are due in time, so
// they are not repaired.
func TestSlowRedisMakesNoTaskLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSimulatedFixture(t, 10)
		// so that Redis knows the script, and the step is one command
		_, err := f.queue.Locate(t.Context(), f.table.ids)
		testenv.Must(t, err)
		f.after = func(step string) {
			if step == "Locate" {
				<-time.After(4 * tolerance)
			}
		}
		if report := sweepOnce(t, f); report.Repairs() != 0 || report.Outcome != OK {
			t.Errorf("reported %+v, want no repairs", report)
		}
	})
}

// TestSweepOnAHungRedis sweeps while Redis accepts connections and does not answer. The sweep times out the overdue
// rows, and waits for Redis for a second.
func TestSweepOnAHungRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rdb := client(t, &redis.Options{
			DialTimeout: time.Minute, ReadTimeout: time.Minute, WriteTimeout: time.Minute,
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				conn, _ := net.Pipe()
				return conn, nil
			},
		})
		f := &fixture{table: &fakeTable{overdue: rows(5, good)}, queue: newQueue(t, rdb)}
		began := time.Now()
		report := sweepOnce(t, f)
		if report.Outcome != Degraded || report.Overdue != 5 {
			t.Errorf("reported %+v, want degraded with 5 overdue", report)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("the sweep took %v, want at most a second", took)
		}
	})
}
