package reconcile

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"example.com/shop/internal/delay"
)

// concat joins sequences of rows.
func concat(runs ...[]fate) []fate { return slices.Concat(runs...) }

// TestSweepInOutage sweeps while each statement is answered with an error whose cause is outside the rows. No row
// counts as failed, so that the sweep after the outage times them all out. A row that failed alone before still does.
func TestSweepInOutage(t *testing.T) {
	f := newFixture(t, 3)
	r := newTestReconciler(t, f)
	f.table.failed = delay.Outage(errDown, true)
	f.table.overdue = concat(rows(1, poisoned), rows(1, good))
	if report := r.sweep(t.Context()); report.Outcome != Partial || report.Failed != 1 || report.Overdue != 1 {
		t.Fatalf("the first sweep reported %+v, want one row that failed", report)
	}
	f.table.overdue = concat(rows(1, poisoned), rows(2*pageSize, poisoned))
	for range 2 {
		if report := r.sweep(t.Context()); report.Outcome != Failed || report.Failed != 1 || report.Examined != 3 {
			t.Errorf("in the outage a sweep reported %+v, want that it failed, with one failed row", report)
		}
	}
	f.table.overdue = rows(1+2*pageSize, good)
	if report := r.sweep(t.Context()); report.Overdue < 2*pageSize || report.Overdue+report.Failed != 1+2*pageSize {
		t.Errorf("after the outage a sweep reported %+v, want all rows timed out but the one that failed", report)
	}
}

// TestSweepOfRandomRows sweeps a random sequence of rows twice. The first sweep times out all good rows, and both
// count the others. If each statement of a sweep fails with the code of an outage, no row counts.
func TestSweepOfRandomRows(t *testing.T) {
	f := newFixture(t, 1)
	rapid.Check(t, func(rt *rapid.T) {
		f.table.overdue, f.table.failed = nil, errDown
		for range rapid.IntRange(0, 12).Draw(rt, "runs") {
			of := rapid.SampledFrom([]fate{good, locked, poisoned}).Draw(rt, "fate")
			f.table.overdue = append(f.table.overdue, rows(rapid.IntRange(1, pageSize+1).Draw(rt, "rows"), of)...)
		}
		want := Report{
			Outcome: OK, Examined: 1,
			Overdue: f.table.count(good), Locked: f.table.count(locked), Failed: f.table.count(poisoned),
		}
		if want.Locked+want.Failed > 0 {
			want.Outcome = Partial
		}
		if rapid.Bool().Draw(rt, "with the code of an outage") {
			f.table.failed = delay.Outage(errDown, true)
			if want.Failed == len(f.table.overdue) && want.Failed > 0 {
				want.Outcome, want.Failed = Failed, 0
			}
		}
		r := newTestReconciler(t, f)
		for sweep := range 2 {
			got := r.sweep(t.Context())
			if (got.Error != "") != (want.Outcome != OK) || len(got.Error) > 200 {
				rt.Errorf("sweep %d has the error %q, want a short one unless all is well", sweep, got.Error)
			}
			got.StartedAt, got.Took, got.Error = time.Time{}, 0, ""
			if got != want {
				rt.Fatalf("sweep %d reported %+v, want %+v", sweep, got, want)
			}
			want.Overdue = 0
		}
	})
}

// TestReportStaysShort lets statements return long errors. The error of a report stays short, because it is logged and
// stored with each sweep.
func TestReportStaysShort(t *testing.T) {
	f := newFixture(t, 0)
	f.table.overdue = rows(30, poisoned)
	f.table.failed = errors.New(strings.Repeat("a long reason ", 10_000))
	report := sweepOnce(t, f)
	if len(report.Error) > 1100 || !strings.HasPrefix(report.Error, "30 overdue rows cannot be timed out") ||
		strings.Count(report.Error, "reason") < 3 {
		t.Errorf("the error has %d bytes, want at most 1100 with 3 reasons: %.200s", len(report.Error), report.Error)
	}
}

// TestStatementsForRowsThatFail counts statements. One sweep finds the rows that cannot be timed out, and the next
// sweeps spend few statements on them, or none until a retry is due. When the cause is gone, one sweep times out all
// of them.
func TestStatementsForRowsThatFail(t *testing.T) {
	const pause = (retryPause + 1) * retryBudget // longer than after any retry
	synctest.Test(t, func(t *testing.T) {
		for name, test := range map[string]struct {
			overdue       []fate
			first, second int // the most statements
		}{
			"one of a page": {concat(rows(pageSize-1, good), rows(1, poisoned)), 1 + pageSize + 1, 1},
			"a page":        {rows(pageSize, poisoned), 1 + pageSize + 501, 501},
			"of two pages":  {concat(rows(1, poisoned), rows(2*pageSize-2, good), rows(1, poisoned)), 2 + 2*pageSize + 2, 2},
		} {
			f := newSimulatedFixture(t, 0)
			f.table.overdue, f.table.took = test.overdue, retryBudget/500
			r := newTestReconciler(t, f)
			want := f.table.count(poisoned)
			for _, sweep := range []struct {
				after time.Duration
				most  int
			}{{0, test.first}, {0, 0}, {pause, test.second}} {
				<-time.After(sweep.after)
				f.table.statements = 0
				report := r.sweep(t.Context())
				if report.Failed != want || f.table.statements > sweep.most || f.table.statements < min(want, sweep.most) {
					t.Errorf("%s: %d of %d rows failed, with %d statements, want at most %d statements", name,
						report.Failed, want, f.table.statements, sweep.most)
				}
			}
			for i, of := range f.table.overdue {
				if of == poisoned {
					f.table.overdue[i] = good
				}
			}
			<-time.After(pause)
			if report := r.sweep(t.Context()); report.Outcome != OK || f.table.count(good) > 0 {
				t.Errorf("%s: after a sweep without the cause %d rows are left: %+v", name, f.table.count(good), report)
			}
		}
	})
}

// TestBudgetForLockedRows has more pages of locked rows than fit into the budget of a sweep, and good rows after them.
// Each sweep goes on where the last one stopped, so the good rows are timed out after some sweeps. Then a sweep begins
// with the first page again.
func TestBudgetForLockedRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pages, perPage = 20, 3 * time.Second
		f := newSimulatedFixture(t, 3)
		f.table.overdue = concat(rows(pages*pageSize, locked), rows(7, good))
		f.table.took = perPage
		r := newTestReconciler(t, f)
		const perSweep = int((walkBudget + perPage - 1) / perPage) // pages
		for sweep := range pages/perSweep + 1 {
			if n := f.table.count(good); n != 7 {
				t.Fatalf("%d good rows are left before sweep %d, want all 7: the test must have enough pages before them", n, sweep)
			}
			report := r.sweep(t.Context())
			if took := time.Duration(report.Took * float64(time.Second)); took >= walkBudget+2*perPage {
				t.Errorf("sweep %d took %v, want at most the budget, the page that exceeds it, and the last page",
					sweep, took)
			}
			if report.Outcome != Partial || report.Examined != 3 {
				t.Errorf("sweep %d reported %+v, want partial with 3 examined", sweep, report)
			}
		}
		if n := f.table.count(good); n != 0 {
			t.Errorf("%d good rows are left, want none", n)
		}
		reads := map[int]int{}
		for _, after := range f.table.afters {
			reads[after]++
		}
		for page := range pages {
			if n := reads[page*pageSize]; n == 0 || n > 2 || n > 1 && page > perSweep {
				t.Errorf("page %d was read %d times, want once, or twice at the beginning: %v", page, n, f.table.afters)
			}
		}
	})
}

// TestGoodRowsBesideSlowOnes has ten rows whose statements fail only after the statement_timeout, and good rows in the
// same page. Each sweep finds two of the slow rows, so it takes at most six sweeps until all good rows are timed out.
// A row that becomes overdue after the first sweep is timed out within a second by the next one, so that it is late by
// at most an interval and 3 s.
func TestGoodRowsBesideSlowOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSimulatedFixture(t, 0)
		f.table.overdue = concat(rows(10, slow), rows(pageSize/2, good))
		f.table.took, f.table.ended = time.Millisecond, map[int]time.Time{}
		r := newTestReconciler(t, f)
		for sweep := 1; sweep <= 15; sweep++ {
			began, last := time.Now(), len(f.table.overdue)-1
			report := r.sweep(t.Context())
			if took := time.Since(began); took > r.interval {
				t.Errorf("sweep %d took %v, want at most the interval", sweep, took)
			}
			if late := f.table.ended[last].Sub(began); sweep > 1 && (late < 0 || late > time.Second) {
				t.Errorf("sweep %d timed out the last row after %v, want within a second", sweep, late)
			}
			if n := f.table.count(good); sweep >= 6 && (n > 0 || report.Failed != 10) {
				t.Errorf("after sweep %d %d good rows are left, and %d rows failed; want none, and 10", sweep, n,
					report.Failed)
			}
			f.table.overdue = append(f.table.overdue, good)
			<-time.After(time.Until(began.Add(r.interval)))
		}
	})
}

// TestGoodRowsInWhatLooksLikeAnOutage has good rows after ten slow ones whose errors have the code of an outage. As
// long as a sweep gets only to slow rows, it cannot know that this is no outage, so it remembers none of them. But the
// next sweep tries other rows.
func TestGoodRowsInWhatLooksLikeAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSimulatedFixture(t, 0)
		f.table.overdue = concat(rows(10, slow), rows(20, good))
		f.table.failed = delay.Outage(errDown, true)
		r := newTestReconciler(t, f)
		for sweep := 1; f.table.count(good) > 0; sweep++ {
			if r.sweep(t.Context()); sweep == 60 {
				t.Fatalf("%d good rows are left after %d sweeps", f.table.count(good), sweep)
			}
		}
	})
}

// TestMoreRowsThatFailThanAreRemembered has good rows among the failing rows of a page, while a reconciler remembers
// as many failed rows as it may. The rows of the page are not remembered, and their good rows are timed out when there
// is room again.
func TestMoreRowsThatFailThanAreRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSimulatedFixture(t, 0)
		f.table.overdue = concat(rows(10, good), rows(1, poisoned), rows(maxFailed, done))
		r := newTestReconciler(t, f)
		for i := range maxFailed {
			r.overdue.failed[fmt.Sprint(11+i)] = errDown
		}
		r.overdue.retryAt = time.Now().Add(time.Minute)
		if report := r.sweep(t.Context()); report.Failed != maxFailed || f.table.count(good) != 10 {
			t.Errorf("reported %+v with %d good rows left, want %d failed ones, and 10", report, f.table.count(good),
				maxFailed)
		}
		<-time.After(time.Minute)
		r.sweep(t.Context()) // it notices that the other rows have ended
		if report := r.sweep(t.Context()); report.Failed != 1 || f.table.count(good) != 0 {
			t.Errorf("reported %+v with %d good rows left, want one failed, and none", report, f.table.count(good))
		}
	})
}
