package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"
)

var errDown = errors.New("down")

// fakeTable has pending rows with what is left to each, and overdue rows.
type fakeTable struct {
	ids     []string
	left    []time.Duration
	overdue []fate
	took    time.Duration   // that each statement takes that times out rows
	failed  error           // of each statement with a poisoned row
	fails   map[string]bool // by method

	aheads []time.Duration // what Pending was asked for
	afters []string        // what Overdue was asked for

	statements int // that timed out rows, or were to
}

// fate is what becomes of an overdue row that is asked to time out.
type fate string

const (
	good     fate = "good"
	locked   fate = "locked"
	poisoned fate = "poisoned"
	done     fate = "done" // timed out before
)

func rows(n int, f fate) []fate { return slices.Repeat([]fate{f}, n) }

func (f *fakeTable) Pending(_ context.Context, after string, ahead time.Duration, limit int) ([]string, []time.Duration, string, error) {
	if f.fails["Pending"] {
		return nil, nil, "", errDown
	}
	f.aheads = append(f.aheads, ahead)
	from, _ := strconv.Atoi(after)
	to := min(from+limit, len(f.ids))
	next := ""
	if to < len(f.ids) {
		next = strconv.Itoa(to)
	}
	return f.ids[from:to], f.left[from:to], next, nil
}

func (f *fakeTable) Unknown(_ context.Context, ids []string) ([]string, error) {
	if f.fails["Unknown"] {
		return nil, errDown
	}
	var unknown []string
	for _, id := range ids {
		if !slices.Contains(f.ids, id) {
			unknown = append(unknown, id)
		}
	}
	return unknown, nil
}

func (f *fakeTable) Overdue(_ context.Context, after string, _ time.Duration, limit int) (ids []string, next string, err error) {
	f.afters = append(f.afters, after)
	if f.fails["Overdue"] {
		return nil, "", errDown
	}
	at, _ := strconv.Atoi(after)
	for ; at < len(f.overdue); at++ {
		if f.overdue[at] == done {
			continue
		}
		if len(ids) == limit {
			return ids, strconv.Itoa(at), nil
		}
		ids = append(ids, strconv.Itoa(at))
	}
	return ids, "", nil
}

func (f *fakeTable) TimeOut(ctx context.Context, ids []string) (timedOut, held int, err error) {
	f.statements++
	if f.took > 0 {
		select {
		case <-time.After(f.took):
		case <-ctx.Done():
			return 0, 0, fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
		}
	}
	if f.fails["TimeOut"] {
		return 0, 0, ErrUnavailable
	}
	at := make([]int, len(ids))
	for i, id := range ids {
		at[i], _ = strconv.Atoi(id)
		if f.overdue[at[i]] == poisoned {
			return 0, 0, f.failed
		}
	}
	for _, i := range at {
		switch f.overdue[i] {
		case good:
			timedOut++
			f.overdue[i] = done
		case locked:
			held++
		}
	}
	return timedOut, held, nil
}

// fakeQueue has places of tasks, and ids in the order in which they are due.
type fakeQueue struct {
	places   map[string]Place
	order    []string
	wrong    []string // keys that hold another type of value
	sentinel string
	fails    map[string]bool
	during   func(method string) // called as each method begins
}

func (f *fakeQueue) begin(method string) error {
	if f.during != nil {
		f.during(method)
	}
	if f.fails[method] {
		return errDown
	}
	return nil
}

func (f *fakeQueue) Kind() string { return "test.kind" }

func (f *fakeQueue) Locate(_ context.Context, ids []string) ([]Place, error) {
	places := make([]Place, len(ids))
	for i, id := range ids {
		places[i] = f.places[id]
	}
	return places, f.begin("Locate")
}

func (f *fakeQueue) Schedule(_ context.Context, ids []string, left []time.Duration) error {
	if err := f.begin("Schedule"); err != nil {
		return err
	}
	for i, id := range ids {
		f.places[id] = Place{Scheduled: true, Left: left[i]}
	}
	return nil
}

func (f *fakeQueue) Mend(context.Context) ([]string, error) {
	if err := f.begin("Mend"); err != nil {
		return nil, err
	}
	renamed := f.wrong
	f.wrong = nil
	return renamed, nil
}

func (f *fakeQueue) RemoveOrphans(ctx context.Context, _ time.Duration, unknown func(context.Context, []string) ([]string, error)) (int, error) {
	if err := f.begin("RemoveOrphans"); err != nil {
		return 0, err
	}
	orphans, err := unknown(ctx, f.order)
	if err != nil {
		return 0, err
	}
	f.order = slices.DeleteFunc(f.order, func(id string) bool { return slices.Contains(orphans, id) })
	return len(orphans), nil
}

func (f *fakeQueue) Intact(context.Context) (bool, error) {
	return f.sentinel == "complete", f.begin("Intact")
}

func (f *fakeQueue) BeginRestore(context.Context) error {
	f.sentinel = "restoring"
	return f.begin("BeginRestore")
}

func (f *fakeQueue) EndRestore(context.Context) error {
	if err := f.begin("EndRestore"); err != nil {
		return err
	}
	if f.sentinel != "" {
		f.sentinel = "complete"
	}
	return nil
}

func (f *fakeQueue) wipe() { f.places, f.sentinel = map[string]Place{}, "" }

// newFakes returns n pending rows, due in an hour, and a queue that has them all.
func newFakes(n int) (*fakeTable, *fakeQueue) {
	table := &fakeTable{fails: map[string]bool{}, failed: errDown}
	queue := &fakeQueue{places: map[string]Place{}, sentinel: "complete", fails: map[string]bool{}}
	for i := range n {
		id := strconv.Itoa(i)
		table.ids, table.left = append(table.ids, id), append(table.left, time.Hour)
		queue.places[id] = Place{Scheduled: true, Left: time.Hour}
		queue.order = append(queue.order, id)
	}
	return table, queue
}

func newReconciler(t testing.TB, table Table, queue Queue) *Reconciler {
	t.Helper()
	r, err := New(nil, table, queue, Config{}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// sweepOnce sweeps without the lock and drops from the report what differs each time.
func sweepOnce(t testing.TB, table Table, queue Queue) Report {
	t.Helper()
	report := newReconciler(t, table, queue).sweep(t.Context())
	report.StartedAt, report.Took = time.Time{}, 0
	return report
}

func TestSweepRepairs(t *testing.T) {
	const pending = 2*pageSize + 7
	all := Report{Outcome: OK, Examined: pending}
	with := func(change func(*Report)) Report {
		r := all
		change(&r)
		return r
	}
	tests := map[string]struct {
		lose func(*fakeTable, *fakeQueue)
		want Report
	}{
		"nothing": {func(*fakeTable, *fakeQueue) {}, all},
		"missing": {func(_ *fakeTable, q *fakeQueue) {
			delete(q.places, "0")
			delete(q.places, "2000")
		}, with(func(r *Report) { r.Missing = 2 })},
		"late": {func(_ *fakeTable, q *fakeQueue) {
			q.places["1"] = Place{Scheduled: true, Left: time.Hour + 2*time.Minute}
		}, with(func(r *Report) { r.Late = 1 })},
		"later than the deadline by less than the tolerance": {func(_ *fakeTable, q *fakeQueue) {
			q.places["1"] = Place{Scheduled: true, Left: time.Hour + tolerance - 100*time.Millisecond}
		}, all},
		"early": {func(_ *fakeTable, q *fakeQueue) {
			q.places["1"] = Place{Scheduled: true, Left: -time.Hour}
		}, all},
		"late by more than any duration": {func(_ *fakeTable, q *fakeQueue) {
			q.places["1"] = Place{Scheduled: true, Left: math.MaxInt64}
		}, with(func(r *Report) { r.Late = 1 })},
		"failed, and waits for its next attempt": {func(_ *fakeTable, q *fakeQueue) {
			q.places["1"] = Place{Scheduled: true, Failed: true, Left: 2 * time.Hour}
		}, all},
		"overdue, and waits for its next attempt": {func(table *fakeTable, q *fakeQueue) {
			table.left[1] = -time.Second
			q.places["1"] = Place{Scheduled: true, Left: time.Minute}
		}, all},
		"overdue and missing": {func(table *fakeTable, q *fakeQueue) {
			table.left[1] = -time.Second
			delete(q.places, "1")
		}, with(func(r *Report) { r.Missing = 1 })},
		"leased, for however long": {func(_ *fakeTable, q *fakeQueue) {
			q.places["1"] = Place{Leased: true, Left: 2 * time.Hour}
		}, all},
		"dead": {func(_ *fakeTable, q *fakeQueue) {
			q.places["1"] = Place{Dead: true}
		}, with(func(r *Report) { r.Dead = 1 })},
		"orphaned": {func(_ *fakeTable, q *fakeQueue) {
			for i := range 3 * pageSize {
				q.order = append([]string{fmt.Sprint("stray", i)}, q.order...)
			}
		}, with(func(r *Report) { r.Orphaned = 3 * pageSize })},
		"overdue": {func(table *fakeTable, _ *fakeQueue) {
			table.overdue = rows(2*pageSize+1, good)
		}, with(func(r *Report) { r.Overdue = 2*pageSize + 1 })},
		"set aside": {func(_ *fakeTable, q *fakeQueue) {
			q.wrong = []string{"due:set-aside", "dead:set-aside"}
		}, with(func(r *Report) { r.SetAside = 2 })},
		"wiped": {func(_ *fakeTable, q *fakeQueue) { q.wipe() }, with(func(r *Report) { r.Full, r.Missing = true, pending })},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			table, queue := newFakes(pending)
			test.lose(table, queue)
			if got := sweepOnce(t, table, queue); got != test.want {
				t.Errorf("reported %+v, want %+v", got, test.want)
			}
			// What is repaired stays repaired; a dead letter is still one.
			if got, want := sweepOnce(t, table, queue), (Report{Outcome: OK, Examined: pending, Dead: test.want.Dead}); got != want {
				t.Errorf("reported %+v the second time, want %+v", got, want)
			}
			if wantAhead := defaultLookahead; table.aheads[len(table.aheads)-1] != wantAhead {
				t.Errorf("looked %v ahead, want %v", table.aheads, wantAhead)
			}
		})
	}
}

// TestSweepAsksForAllAfterAWipe: the look-ahead bounds a sweep, but not a restore.
func TestSweepAsksForAllAfterAWipe(t *testing.T) {
	table, queue := newFakes(1)
	queue.wipe()
	sweepOnce(t, table, queue)
	if len(table.aheads) != 1 || table.aheads[0] >= 0 {
		t.Errorf("asked for rows within %v, want no limit", table.aheads)
	}
}

// TestSweepWithoutTheQueue fails each call of the queue: the sweep is degraded, what the table alone allows
// is done, and a restore that did not end does not count as one.
func TestSweepWithoutTheQueue(t *testing.T) {
	for _, method := range []string{"Mend", "Intact", "BeginRestore", "Locate", "Schedule", "EndRestore", "RemoveOrphans"} {
		t.Run(method, func(t *testing.T) {
			table, queue := newFakes(10)
			queue.wipe()
			queue.order = append(queue.order, "stray")
			table.overdue = rows(5, good)
			queue.fails[method] = true
			report := sweepOnce(t, table, queue)
			if report.Outcome != Degraded || report.Error == "" || report.Overdue != 5 {
				t.Errorf("reported %+v, want degraded with 5 overdue", report)
			}
			if ended := method == "RemoveOrphans"; (queue.sentinel == "complete") != ended {
				t.Errorf("the sentinel is %q", queue.sentinel)
			}
			clear(queue.fails)
			if report := sweepOnce(t, table, queue); report.Outcome != OK || len(queue.places) != 10 || queue.sentinel != "complete" {
				t.Errorf("the next sweep: %+v, %d tasks, sentinel %q", report, len(queue.places), queue.sentinel)
			}
		})
	}
}

func TestSweepWithoutTheTable(t *testing.T) {
	for _, method := range []string{"Overdue", "TimeOut", "Pending", "Unknown"} {
		t.Run(method, func(t *testing.T) {
			table, queue := newFakes(10)
			queue.wipe()
			table.overdue = rows(1, good)
			table.fails[method] = true
			if report := sweepOnce(t, table, queue); report.Outcome != Failed || report.Error == "" {
				t.Errorf("reported %+v, want failed", report)
			}
			if method == "Pending" && queue.sentinel == "complete" {
				t.Error("a restore that failed counts as one")
			}
		})
	}
}

// TestWipeDuringARestore loses everything in the middle: that the walk ends must not cover it up.
func TestWipeDuringARestore(t *testing.T) {
	table, queue := newFakes(3 * pageSize)
	queue.wipe()
	scheduled := 0
	queue.during = func(method string) {
		if method == "Schedule" {
			if scheduled++; scheduled == 3 {
				queue.wipe()
			}
		}
	}
	sweepOnce(t, table, queue)
	if queue.sentinel == "complete" {
		t.Fatal("the wipe is covered up")
	}
	queue.during = nil
	if report := sweepOnce(t, table, queue); !report.Full || report.Missing != 2*pageSize {
		t.Errorf("the next sweep: %+v, want the two wiped pages restored", report)
	}
}
