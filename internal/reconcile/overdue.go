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

// overdueRows times out the overdue rows of a table. A statement on several rows fails if one of them cannot be timed out.
// overdueRows remembers the rows of a failed statement, and tries them again in later steps and sweeps.
//
// A sweep takes two steps, so that the rows that can be timed out do not wait for those that cannot:
//
//   - [overdueRows.walk] times out the rows page by page. If the statement on a page fails, it goes on with the next
//     page. It skips rows that are remembered already.
//   - [overdueRows.searchFailed] times out smaller and smaller batches of the remembered rows. In the end only the rows are
//     remembered that cannot be timed out.
type overdueRows struct {
	mu    sync.Mutex
	after string // the argument after of [Table.Pending] with which the next walk begins

	// failed has the remembered rows: by their ids, the error of the last statement on the row.
	failed map[string]error
	// failedBatches has the ids of the rows of each failed statement on several rows, and failedAlone those of the rows on
	// which a statement for a single row failed. Both are in the order of the failures, and may contain ids of rows that
	// are no longer remembered.
	failedBatches [][]string
	failedAlone   []string
	// retryAll makes the next walk forget all rows, and so try them. It is set when the cause of the failures may be gone:
	// a row that failed alone was timed out, or no row of a failed batch fails any more.
	retryAll bool

	maxFailed int // the constant maxFailed; a test sets another number
}

const (
	// walkBudget is the time that a walk spends on pages of which at most half of the rows are timed out. With a longer time
	// sweeps could miss their schedule. A shorter one must still suffice to read past the pages of remembered rows, of
	// which there are up to a hundred.
	walkBudget = 10 * time.Second
	// aloneBudget is the time that a sweep spends on rows that failed alone. With a longer time it sends more
	// statements that fail. With a shorter one it notices later that the cause of the failures is gone.
	aloneBudget = 200 * time.Millisecond
	// maxFailed is the largest number of rows that are remembered. The pages of further rows that fail are tried again by
	// each walk. More remembered rows take more memory, some 100 bytes each.
	maxFailed = 100_000
)

// searchBudget returns the time that a sweep spends on the search for rows that cannot be timed out. It is half an interval
// of the schedule, so that sweeps keep to their schedule, but at least a second and at most 10 s.
func (r *Reconciler) searchBudget() time.Duration {
	return max(min(r.interval/2, 10*time.Second), time.Second)
}

// walk times out the overdue rows, page by page. If the statement on a page fails, or other sessions have locked
// rows of the page, the walk goes on with the next page. A walk that has spent its budget ends, and the next walk continues
// after its last page. When that walk reaches the end of the table, it begins again with the first page.
func (o *overdueRows) walk(ctx context.Context, t Table, grace time.Duration, report *Report) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.retryAll {
		clear(o.failed)
		o.failedBatches, o.failedAlone, o.retryAll = nil, nil, false
	}
	resumed := o.after != ""      // the walk continues an earlier one, so it begins again after the last page
	seen := make(map[string]bool) // the remembered rows that the walk has seen
	for spent := time.Duration(0); spent < walkBudget; {
		began := time.Now()
		within := -(grace + time.Microsecond) // negative also if grace is 0: a negative value selects overdue rows
		page, next, err := t.Pending(ctx, o.after, within, pageSize)
		o.after = next // "" after an error, so that the next walk begins with the first page
		if err != nil {
			return fmt.Errorf("look for overdue rows: %w", err)
		}
		done, locked, err := o.timeOut(ctx, t, o.notRemembered(page))
		report.Overdue += done
		report.Locked += locked
		if err != nil {
			return err
		}
		for _, row := range page {
			if o.failed[row.ID] != nil {
				seen[row.ID] = true
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
			clear(seen)
		default:
			ended := func(id string, _ error) bool { return !seen[id] }
			maps.DeleteFunc(o.failed, ended)
			return nil
		}
	}
	return nil
}

// notRemembered returns the ids of the rows of a page that are not remembered.
func (o *overdueRows) notRemembered(page []delay.Message) []string {
	ids := make([]string, 0, len(page))
	for _, row := range page {
		if o.failed[row.ID] == nil {
			ids = append(ids, row.ID)
		}
	}
	return ids
}

// timeOut times out rows with one statement. If the statement fails, it remembers the rows. It returns an error only if the
// table is unavailable or ctx has ended; then it forgets the rows, so that the next walk tries them.
func (o *overdueRows) timeOut(ctx context.Context, t Table, ids []string) (done, locked int, err error) {
	if len(ids) == 0 {
		return 0, 0, nil
	}
	done, locked, err = t.TimeOut(ctx, ids)
	switch {
	case err == nil:
		o.forget(ids)
	case errors.Is(err, ErrUnavailable) || ctx.Err() != nil:
		o.forget(ids)
		return done, locked, fmt.Errorf("time out overdue rows: %w", err)
	case len(o.failed) < o.maxFailed || o.failed[ids[0]] != nil:
		o.remember(ids, err)
	}
	return done, locked, nil
}

// remember remembers the rows of a failed statement.
func (o *overdueRows) remember(ids []string, err error) {
	for _, id := range ids {
		o.failed[id] = err
	}
	if len(ids) == 1 {
		o.failedAlone = append(o.failedAlone, ids[0])
	} else {
		o.failedBatches = append(o.failedBatches, ids)
	}
}

func (o *overdueRows) forget(ids []string) {
	for _, id := range ids {
		delete(o.failed, id)
	}
}

// searchFailed searches the remembered rows for those that cannot be timed out. It divides the rows of a
// failed statement into ten batches, divides each batch that fails into ten, and so on, until single rows fail. If some parts of
// a batch could be timed out, it searches the other parts of this batch next, because few statements find the rest there. To find
// one row among 1,000 takes 30 statements. If none of 1,000 rows can be timed out, it takes 1,110 statements. A sweep that
// has no batch to search tries a few of the rows that failed alone again, because the cause may be gone.
func (o *overdueRows) searchFailed(ctx context.Context, t Table, budget time.Duration, report *Report) (err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer func() { report.setFailed(len(o.failed), o.reasons()) }()
	if len(o.failedBatches) == 0 {
		return o.retryAlone(ctx, t, report)
	}
	for began := time.Now(); len(o.failedBatches) > 0 && time.Since(began) < budget; {
		batch := o.remembered(o.failedBatches[0])
		o.failedBatches = o.failedBatches[1:]
		others, sound := len(o.failedBatches), false
		for tenth := range slices.Chunk(batch, max(1, (len(batch)+9)/10)) {
			done, locked, err := o.timeOut(ctx, t, tenth)
			report.Overdue += done
			report.Locked += locked
			sound = sound || done > 0
			if err != nil {
				o.forget(batch) // so that the next walk tries its rows
				return err
			}
		}
		if sound { // rows that can be timed out are often neighbours, so the search goes on beside those it has found
			o.failedBatches = slices.Concat(o.failedBatches[others:], o.failedBatches[:others])
		}
		if len(batch) > 0 && len(o.remembered(batch)) == 0 { // no row of the failed batch fails any more
			o.retryAll = true
			return nil
		}
	}
	return nil
}

// retryAlone tries again some of the rows that failed alone.
func (o *overdueRows) retryAlone(ctx context.Context, t Table, report *Report) error {
	began := time.Now()
	for range len(o.failedAlone) {
		if time.Since(began) >= aloneBudget {
			return nil
		}
		row := o.remembered(o.failedAlone[:1])
		o.failedAlone = o.failedAlone[1:]
		done, locked, err := o.timeOut(ctx, t, row)
		report.Overdue += done
		report.Locked += locked
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

// remembered returns those of the ids whose rows are remembered.
func (o *overdueRows) remembered(ids []string) []string {
	return slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return o.failed[id] == nil })
}

// reasons returns the errors of the first few remembered rows.
func (o *overdueRows) reasons() []error {
	const few = 3
	var reasons []error
	for _, batch := range append([][]string{o.failedAlone}, o.failedBatches...) {
		for _, id := range o.remembered(batch) {
			if reasons = append(reasons, fmt.Errorf("%s: %w", id, o.failed[id])); len(reasons) == few {
				return reasons
			}
		}
	}
	return reasons
}
