package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"example.com/shop/internal/delay"
)

// overdue times out overdue rows. It remembers rows that could not be timed out, for the next sweeps.
//
// A statement on a page fails if one row of the page cannot be timed out. A sweep has two phases, so that the other
// rows of the page and of later pages do not wait for long:
//
//   - [overdue.walk] tries the overdue rows page by page. It remembers all rows of a page that fails and goes on. Later
//     walks skip the remembered rows.
//   - [overdue.searchFailed] tries smaller and smaller parts of the remembered rows, until it has found the rows that
//     cannot be timed out.
type overdue struct {
	mu    sync.Mutex
	after string // the position where the next walk begins, for [Table.Pending]

	// failed holds the ids of the remembered rows, each with the error of the last statement on the row.
	failed map[string]error
	// parts holds, for each failed statement on several rows, the ids of these rows. alone holds the ids of the rows on
	// which a statement of their own failed. Both are in the order of the failures, and may contain ids that are no
	// longer in failed.
	parts [][]string
	alone []string
	// retryAll makes the next walk try all rows. It is set when the cause of the failures may be gone: a row that
	// failed alone was timed out, or no row of a failed part fails any more.
	retryAll bool

	maxFailed int // when len(failed) reaches it, no further rows are remembered, and each walk tries their pages again
}

const (
	// walkBudget is the time that a walk spends on pages of which at most half of the rows are timed out. It suffices
	// for thousands of pages of remembered rows, because such a page takes one read and no call of [Table.TimeOut].
	walkBudget = 10 * time.Second
	// aloneBudget is the time that a sweep spends on rows that failed alone.
	aloneBudget = 200 * time.Millisecond
	maxFailed   = 100_000
)

// searchBudget is the time that a sweep spends on the search for rows that cannot be timed out: half an interval, so
// that sweeps keep to their schedule.
func (r *Reconciler) searchBudget() time.Duration {
	return max(min(r.gap/2, 10*time.Second), time.Second)
}

// walk times out the overdue rows, page by page. If the statement on a page fails, or other sessions hold rows of the
// page, the walk goes on with the next page. If a walk has spent its budget, it ends. The next walk continues after its
// last page. When that walk reaches the end of the table, it begins again with the first page.
func (o *overdue) walk(ctx context.Context, t Table, grace time.Duration, report *Report) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.retryAll {
		clear(o.failed)
		o.parts, o.alone, o.retryAll = nil, nil, false
	}
	resumed := o.after != ""         // then the rows before o.after must be tried at the end
	pending := make(map[string]bool) // the remembered rows that the walk has seen
	for spent := time.Duration(0); spent < walkBudget; {
		began := time.Now()
		page, next, err := t.Pending(ctx, o.after, -(grace + time.Microsecond), pageSize)
		o.after = next // "" after an error, so that the next walk begins with the first page
		if err != nil {
			return fmt.Errorf("look for overdue rows: %w", err)
		}
		done, held, err := o.try(ctx, t, o.unfailed(page))
		report.Overdue += done
		report.Locked += held
		if err != nil {
			return err
		}
		for _, row := range page {
			if o.failed[row.ID] != nil {
				pending[row.ID] = true
			}
		}
		if 2*done <= len(page) {
			spent += time.Since(began)
		}
		switch {
		case next != "":
		case resumed: // begin again with the first page; the counts of the rows begin again too
			resumed = false
			report.Locked = 0
			clear(pending)
		default:
			ended := func(id string, _ error) bool { return !pending[id] }
			maps.DeleteFunc(o.failed, ended)
			return nil
		}
	}
	return nil
}

// unfailed returns the ids of the rows that are not remembered.
func (o *overdue) unfailed(page []delay.Message) []string {
	ids := make([]string, 0, len(page))
	for _, row := range page {
		if o.failed[row.ID] == nil {
			ids = append(ids, row.ID)
		}
	}
	return ids
}

// try times out rows with one statement. If the statement fails, it remembers the rows. It returns an error only if the
// table is unavailable or ctx has ended; then it forgets the rows, so that the next walk tries them.
func (o *overdue) try(ctx context.Context, t Table, ids []string) (done, held int, err error) {
	if len(ids) == 0 {
		return 0, 0, nil
	}
	done, held, err = t.TimeOut(ctx, ids)
	switch {
	case err == nil:
		o.forget(ids)
	case errors.Is(err, ErrUnavailable) || ctx.Err() != nil:
		o.forget(ids)
		return done, held, fmt.Errorf("time out overdue rows: %w", err)
	case len(o.failed) < o.maxFailed || o.failed[ids[0]] != nil:
		o.remember(ids, err)
	}
	return done, held, nil
}

func (o *overdue) remember(ids []string, err error) {
	for _, id := range ids {
		o.failed[id] = err
	}
	if len(ids) == 1 {
		o.alone = append(o.alone, ids[0])
	} else {
		o.parts = append(o.parts, ids)
	}
}

func (o *overdue) forget(ids []string) {
	for _, id := range ids {
		delete(o.failed, id)
	}
}

// searchFailed searches the remembered rows for those that cannot be timed out. It tries a tenth of the rows of a
// failed statement at a time, then tenths of the tenths that fail, until single rows fail. To find one row among
// 1,000 takes 30 statements. If none of 1,000 rows can be timed out, it takes 1,110 statements. A sweep that has no
// part to search tries a few of the rows that failed alone again, because the cause may be gone.
func (o *overdue) searchFailed(ctx context.Context, t Table, budget time.Duration, report *Report) (err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer func() { report.stuck(len(o.failed), o.reasons()) }()
	if len(o.parts) == 0 {
		return o.tryAlone(ctx, t, report)
	}
	for began := time.Now(); len(o.parts) > 0 && time.Since(began) < budget; {
		part := o.stillFailed(o.parts[0])
		o.parts = o.parts[1:]
		for tenth := range slices.Chunk(part, max(1, (len(part)+9)/10)) {
			done, held, err := o.try(ctx, t, tenth)
			report.Overdue += done
			report.Locked += held
			if err != nil {
				o.forget(part) // so that the next walk tries its rows
				return err
			}
		}
		if len(part) > 0 && len(o.stillFailed(part)) == 0 { // no row of the failed part fails any more
			o.retryAll = true
			return nil
		}
	}
	return nil
}

// tryAlone tries again some of the rows that failed alone.
func (o *overdue) tryAlone(ctx context.Context, t Table, report *Report) error {
	began := time.Now()
	for range len(o.alone) {
		if time.Since(began) >= aloneBudget {
			return nil
		}
		row := o.stillFailed(o.alone[:1])
		o.alone = o.alone[1:]
		done, held, err := o.try(ctx, t, row)
		report.Overdue += done
		report.Locked += held
		if err != nil {
			return err
		}
		if done > 0 {
			o.retryAll = true
			return nil
		}
	}
	return nil
}

// stillFailed returns those of the ids that are remembered.
func (o *overdue) stillFailed(ids []string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return o.failed[id] == nil })
}

// reasons returns the errors of the first few remembered rows.
func (o *overdue) reasons() []error {
	const few = 3
	var reasons []error
	for _, part := range append([][]string{o.alone}, o.parts...) {
		for _, id := range o.stillFailed(part) {
			if reasons = append(reasons, fmt.Errorf("%s: %w", id, o.failed[id])); len(reasons) == few {
				return reasons
			}
		}
	}
	return reasons
}
