package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"testing"
	"time"
)

var errDown = errors.New("down")

// fakeTable has pending rows with what is left to each.
type fakeTable struct {
	ids     []string
	left    []time.Duration
	overdue int
	fails   map[string]bool // by method

	aheads []time.Duration // what Pending was asked for
}

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

func (f *fakeTable) CancelOverdue(_ context.Context, _ time.Duration, limit int) (int, error) {
	if f.fails["CancelOverdue"] {
		return 0, errDown
	}
	n := min(f.overdue, limit)
	f.overdue -= n
	return n, nil
}

// fakeQueue has places of tasks, and ids in the order in which they are due.
type fakeQueue struct {
	places   map[string]Place
	order    []string
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
func (f *fakeQueue) Shards() int  { return 1 }

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

func (f *fakeQueue) Window(_ context.Context, _ int, _ time.Duration, offset, limit int) ([]string, error) {
	if err := f.begin("Window"); err != nil {
		return nil, err
	}
	from := min(offset, len(f.order))
	return slices.Clone(f.order[from:min(from+limit, len(f.order))]), nil
}

func (f *fakeQueue) Remove(_ context.Context, ids ...string) (int, error) {
	if err := f.begin("Remove"); err != nil {
		return 0, err
	}
	before := len(f.order)
	f.order = slices.DeleteFunc(f.order, func(id string) bool { return slices.Contains(ids, id) })
	return before - len(f.order), nil
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
	table := &fakeTable{fails: map[string]bool{}}
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
	const rows = 2*pageSize + 7
	all := Report{Outcome: OK, Examined: rows}
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
			table.overdue = 2*pageSize + 1
		}, with(func(r *Report) { r.Overdue = 2*pageSize + 1 })},
		"wiped": {func(_ *fakeTable, q *fakeQueue) { q.wipe() }, with(func(r *Report) { r.Full, r.Missing = true, rows })},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			table, queue := newFakes(rows)
			test.lose(table, queue)
			if got := sweepOnce(t, table, queue); got != test.want {
				t.Errorf("reported %+v, want %+v", got, test.want)
			}
			// What is repaired stays repaired; a dead letter is still one.
			if got, want := sweepOnce(t, table, queue), (Report{Outcome: OK, Examined: rows, Dead: test.want.Dead}); got != want {
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
	for _, method := range []string{"Intact", "BeginRestore", "Locate", "Schedule", "EndRestore", "Window", "Remove"} {
		t.Run(method, func(t *testing.T) {
			table, queue := newFakes(10)
			queue.wipe()
			queue.order = append(queue.order, "stray")
			table.overdue = 5
			queue.fails[method] = true
			report := sweepOnce(t, table, queue)
			if report.Outcome != Degraded || report.Error == "" || report.Overdue != 5 {
				t.Errorf("reported %+v, want degraded with 5 overdue", report)
			}
			ended := method == "Window" || method == "Remove"
			if (queue.sentinel == "complete") != ended {
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
	for _, method := range []string{"CancelOverdue", "Pending", "Unknown"} {
		t.Run(method, func(t *testing.T) {
			table, queue := newFakes(10)
			queue.wipe()
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

// poisoned has a row in each page that cannot be timed out.
type poisoned struct{ *fakeTable }

func (p poisoned) CancelOverdue(ctx context.Context, grace time.Duration, limit int) (int, error) {
	n, _ := p.fakeTable.CancelOverdue(ctx, grace, limit-1)
	return n, errDown
}

func TestSweepGoesOnPastARowThatCannotBeTimedOut(t *testing.T) {
	table, queue := newFakes(3)
	table.overdue = 3 * pageSize
	report := sweepOnce(t, poisoned{table}, queue)
	if report.Overdue != 3*pageSize || report.Outcome != Failed {
		t.Errorf("reported %+v, want %d overdue and a failure", report, 3*pageSize)
	}
}

func TestConfig(t *testing.T) {
	for name, test := range map[string]struct {
		cfg Config
		ok  bool
	}{
		"defaults":                        {Config{}, true},
		"cron expression":                 {Config{Schedule: "*/5 * * * *", Lookahead: 10 * time.Minute}, true},
		"no cron expression":              {Config{Schedule: "often"}, false},
		"look-ahead of one interval":      {Config{Schedule: "@every 1m", Lookahead: time.Minute}, false},
		"look-ahead below the rare hours": {Config{Schedule: "0 9,17 * * *", Lookahead: 16 * time.Hour}, false},
		"negative grace":                  {Config{Grace: -1}, false},
		"a day that never comes":          {Config{Schedule: "0 0 30 2 *", Lookahead: time.Hour}, false},
	} {
		table, queue := newFakes(0)
		_, err := New(nil, table, queue, test.cfg, slog.New(slog.DiscardHandler), nil)
		if (err == nil) != test.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
