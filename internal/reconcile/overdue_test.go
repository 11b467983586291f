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
)

// concat joins runs of rows.
func concat(runs ...[]fate) []fate { return slices.Concat(runs...) }

// interleaved repeats a few rows until there are n.
func interleaved(n int, few ...fate) []fate { return slices.Repeat(few, n/len(few)) }

// count returns how many rows have a fate.
func (f *fakeTable) count(of fate) (n int) {
	for _, row := range f.overdue {
		if row == of {
			n++
		}
	}
	return n
}

// TestSweepGoesOnPastRowsThatCannotBeTimedOut has good rows among such rows, in more than one page: one sweep times out
// all good ones, says that it was partial, and counts the others.
func TestSweepGoesOnPastRowsThatCannotBeTimedOut(t *testing.T) {
	const page = pageSize
	tests := map[string]struct {
		overdue        []fate
		outcome        Outcome
		locked, failed int
	}{
		"none":                       {nil, OK, 0, 0},
		"good ones":                  {rows(3*page, good), OK, 0, 0},
		"one in each page":           {concat(rows(1, poisoned), rows(page, good), rows(1, poisoned), rows(page, good)), Partial, 0, 2},
		"pages of them before":       {concat(rows(6*page, poisoned), rows(60, good)), Partial, 0, 6 * page},
		"pages of locked ones":       {concat(rows(2*page, locked), rows(60, good)), Partial, 2 * page, 0},
		"after the good ones":        {concat(rows(60, good), rows(2*page, poisoned)), Partial, 0, 2 * page},
		"interleaved":                {interleaved(3*page, poisoned, good, locked), Partial, page, page},
		"one good one in the middle": {concat(rows(3*page, locked), rows(1, good), rows(3*page, poisoned)), Partial, 3 * page, 3 * page},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			table, queue := newFakes(3)
			table.overdue = test.overdue
			wantDone := table.count(good)
			r := newReconciler(t, table, queue)
			for sweep := range 2 {
				report := r.sweep(t.Context())
				r.metrics.observe(report)
				if report.Outcome != test.outcome || report.Locked != test.locked || report.Failed != test.failed || report.Overdue != wantDone {
					t.Errorf("sweep %d reported %+v, want %s with %d overdue, %d locked, %d failed",
						sweep, report, test.outcome, wantDone, test.locked, test.failed)
				}
				if (report.Error != "") != (test.outcome == Partial) || len(report.Error) > 200 {
					t.Errorf("sweep %d has the error %q", sweep, report.Error)
				}
				if report.Examined != 3 {
					t.Errorf("sweep %d examined %d pending rows, want 3", sweep, report.Examined)
				}
				wantDone = 0
			}
			if n := table.count(good); n > 0 {
				t.Errorf("%d good rows are left", n)
			}
		})
	}
}

// TestSweepAmongAnyRows draws rows of any fate in any order.
func TestSweepAmongAnyRows(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		table, queue := newFakes(1)
		for range rapid.IntRange(0, 12).Draw(rt, "runs") {
			of := rapid.SampledFrom([]fate{good, locked, poisoned}).Draw(rt, "fate")
			table.overdue = append(table.overdue, rows(rapid.IntRange(1, pageSize+1).Draw(rt, "rows"), of)...)
		}
		want := Report{
			Outcome: OK, Examined: 1,
			Overdue: table.count(good), Locked: table.count(locked), Failed: table.count(poisoned),
		}
		if want.Locked+want.Failed > 0 {
			want.Outcome = Partial
		}
		got := sweepOnce(t, table, queue)
		if got.Error = ""; got != want {
			rt.Fatalf("reported %+v, want %+v", got, want)
		}
	})
}

// TestReportStaysShort: the error of a sweep is logged and stored each time.
func TestReportStaysShort(t *testing.T) {
	table, queue := newFakes(0)
	table.overdue = rows(3*pageSize, poisoned)
	table.failed = errors.New(strings.Repeat("a long reason ", 10_000))
	report := sweepOnce(t, table, queue)
	if len(report.Error) > 1100 || !strings.HasPrefix(report.Error, "3000 overdue rows cannot be timed out") || strings.Count(report.Error, "reason") < 3 {
		t.Errorf("the error has %d bytes: %.200s", len(report.Error), report.Error)
	}
}

// TestStatementsForRowsThatFail: one sweep finds the rows that cannot be timed out, the next ones spend little on them,
// and when one of them can be timed out all are.
func TestStatementsForRowsThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, test := range map[string]struct {
			overdue       []fate
			first, second int // the most statements
		}{
			"one of a page": {concat(rows(pageSize-1, good), rows(1, poisoned)), 31, 1},
			"a page":        {rows(pageSize, poisoned), 1111, 200},
			"of two pages":  {concat(rows(1, poisoned), rows(2*pageSize-2, good), rows(1, poisoned)), 62, 2},
		} {
			table, queue := newFakes(0)
			table.overdue, table.took = test.overdue, time.Millisecond
			r := newReconciler(t, table, queue)
			want := table.count(poisoned)
			for _, most := range []int{test.first, test.second} {
				table.statements = 0
				report := r.sweep(t.Context())
				if report.Failed != want || table.statements > most || table.statements < min(want, most) {
					t.Errorf("%s: %d of %d failed, with %d statements, want at most %d", name, report.Failed, want, table.statements, most)
				}
			}
			for i, of := range table.overdue {
				if of == poisoned {
					table.overdue[i] = good
				}
			}
			r.sweep(t.Context())
			if report := r.sweep(t.Context()); report.Outcome != OK || table.count(good) > 0 {
				t.Errorf("%s: two sweeps after the cause was mended %d rows are left: %+v", name, table.count(good), report)
			}
		}
	})
}

// TestBudgetForLockedRows has more of them than one sweep may spend its time on. Each sweep goes on where the last one
// stopped, so good rows behind them are timed out after some sweeps; then it begins again at the first row.
func TestBudgetForLockedRows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pages, perPage = 20, 3 * time.Second
		table, queue := newFakes(3)
		table.overdue = concat(rows(pages*pageSize, locked), rows(7, good))
		table.took = perPage
		r := newReconciler(t, table, queue)
		const perSweep = int((walkBudget + perPage - 1) / perPage) // pages
		for sweep := range pages/perSweep + 1 {
			if n := table.count(good); n != 7 {
				t.Fatalf("%d good rows before sweep %d: it got ahead of itself", n, sweep)
			}
			report := r.sweep(t.Context())
			if took := time.Duration(report.Took * float64(time.Second)); took >= walkBudget+2*perPage {
				t.Errorf("sweep %d took %v, want at most the budget, a page that exceeds it, and the good one", sweep, took)
			}
			if report.Outcome != Partial || report.Examined != 3 {
				t.Errorf("sweep %d: %+v", sweep, report)
			}
		}
		if n := table.count(good); n != 0 {
			t.Errorf("%d good rows are left", n)
		}
		asked := map[string]int{}
		for _, after := range table.afters {
			asked[after]++
		}
		for page := range pages {
			after := ""
			if page > 0 {
				after = fmt.Sprint(page * pageSize)
			}
			if n := asked[after]; n == 0 || n > 2 || n > 1 && page > perSweep {
				t.Errorf("page %d was asked for %d times, in %q", page, n, table.afters)
			}
		}
	})
}

// TestBudgetForRowsThatFail has statements that take long to fail. Rows that share no page with such rows do not wait for
// them, and the others are found after some sweeps.
func TestBudgetForRowsThatFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, queue := newFakes(0)
		table.overdue = concat(rows(2*pageSize, poisoned), interleaved(pageSize, slices.Concat(rows(99, poisoned), rows(1, good))...), rows(60, good))
		table.took = 20 * time.Millisecond
		r := newReconciler(t, table, queue)
		budget := (walkBudget + r.apartBudget() + aloneBudget).Seconds() + 1
		for sweep := 1; table.count(good) > 0; sweep++ {
			report := r.sweep(t.Context())
			if report.Took > budget || report.Outcome != Partial {
				t.Errorf("sweep %d took %v s of %v: %+v", sweep, report.Took, budget, report)
			}
			if n := table.count(good); sweep == 1 && n > 10 || sweep == 10 && n > 0 {
				t.Fatalf("%d good rows are left after sweep %d", n, sweep)
			}
		}
	})
}

// TestSweepBeginsAgainAtTheEnd: rows before the one where a sweep goes on are tried in that sweep, too.
func TestSweepBeginsAgainAtTheEnd(t *testing.T) {
	table, queue := newFakes(0)
	table.overdue = concat(rows(1, good), rows(2*pageSize, locked))
	r := newReconciler(t, table, queue)
	r.overdue.after = fmt.Sprint(pageSize)
	report := r.sweep(t.Context())
	if report.Overdue != 1 || report.Locked != 2*pageSize {
		t.Errorf("reported %+v, want 1 overdue and each of the others counted once", report)
	}
}

// TestMoreRowsThatFailThanAreRemembered: none of the good rows among them is lost from sight.
func TestMoreRowsThatFailThanAreRemembered(t *testing.T) {
	table, queue := newFakes(0)
	table.overdue = interleaved(3*pageSize, slices.Concat(rows(99, poisoned), rows(1, good))...)
	r := newReconciler(t, table, queue)
	r.overdue.most = 2*pageSize + 1
	for sweep := 0; table.count(good) > 0; sweep++ {
		if sweep == 10 {
			t.Fatalf("%d good rows are left after %d sweeps", table.count(good), sweep)
		}
		r.sweep(t.Context())
		for _, id := range slices.Concat(append(r.overdue.parts, r.overdue.alone)...) {
			delete(r.overdue.why, id)
		}
		if len(r.overdue.why) > 0 {
			t.Fatalf("%d rows are passed over and never tried again", len(r.overdue.why))
		}
		for _, id := range slices.Concat(append(r.overdue.parts, r.overdue.alone)...) {
			r.overdue.why[id] = errDown
		}
	}
}

// TestRowsThatEndAreForgotten: a row that failed, and was ended in another way, is not counted any more.
func TestRowsThatEndAreForgotten(t *testing.T) {
	table, queue := newFakes(0)
	table.overdue = rows(5, poisoned)
	r := newReconciler(t, table, queue)
	r.sweep(t.Context())
	table.overdue[1], table.overdue[3] = done, done
	if report := r.sweep(t.Context()); report.Failed != 3 || len(r.overdue.why) != 3 {
		t.Errorf("reported %+v, remembers %d rows, want 3", report, len(r.overdue.why))
	}
}
