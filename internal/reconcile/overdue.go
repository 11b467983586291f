package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
)

// overdueRows times out the overdue rows of a table. A statement on several rows fails if one of them cannot be timed
// out, and the other rows must not wait for this one. So each sweep takes three steps:
//
//   - [overdueRows.retry] tries some of the rows again on which a statement failed alone. If one of them does not fail
//     any more, the cause of the failures may be gone, so all rows that have failed are forgotten.
//   - [overdueRows.walk] times out page after page, without the rows that have failed. A page that fails becomes a
//     suspect: a group of rows, at least one of which cannot be timed out.
//   - [overdueRows.search] times out the suspects, in halves, quarters and so on, until only the rows that cannot be
//     timed out have failed.
//
// A statement may fail for a reason that is probably outside the rows ([delay.Outage]). If the server answered, some of
// the rows may be the cause all the same, so the sweep goes on. If no statement of it succeeds, it was an outage, and
// the rows of the sweep do not count as failed.
//
// For example, the statement on a page of the rows a, b, c and d fails because of c. The walk makes the page a
// suspect. The search times out a and b, and the statement on c and d fails, so this half is a suspect. Then it times
// out d, and the statement on c fails alone. From then on each walk leaves c out, and each sweep tries c again by
// itself.
type overdueRows struct {
	table pendingRows

	mu       sync.Mutex       // an operator's sweep may meet one that hangs and has lost the lock of the sweeps
	after    keyset.Cursor    // where the next walk begins: the argument after of [Table.Pending]
	failed   map[string]error // the last error of each row of a failed statement, by id; the walk omits these rows
	suspects [][]string       // failed rows that have not failed alone, by statement, in the order of the search

	succeeded bool  // a statement of this sweep has succeeded
	outage    error // the last error of a statement of this sweep whose cause is probably outside the rows
}

const (
	// walkBudget is the time that a walk spends on pages of which at most half of the rows are timed out. It suffices
	// to read past a hundred pages, which is the largest number of pages of rows that have failed.
	walkBudget = 10 * time.Second
	// maxFailed is the largest number of failed rows that are remembered, because each takes some 100 bytes. The pages
	// of further rows that fail are tried again by each walk.
	maxFailed = 100_000
	// maxRetries is the largest number of failed rows that a sweep tries again. It begins no retry after retryBudget,
	// because the statement on a row may fail only after the statement_timeout.
	maxRetries  = 100
	retryBudget = time.Second
)

// run times out the rows that are late by more than a time. The search takes at most the time budget.
func (o *overdueRows) run(ctx context.Context, late, budget time.Duration, report *Report) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer func() { report.setFailed(o.failed) }()
	failed, suspects := maps.Clone(o.failed), slices.Clone(o.suspects)
	o.succeeded, o.outage = false, nil
	err := o.steps(ctx, late, budget, report)
	if o.outage != nil && !o.succeeded {
		o.failed, o.suspects = failed, suspects
		return cmp.Or(err, o.outage)
	}
	return err
}

// steps takes the three steps.
func (o *overdueRows) steps(ctx context.Context, late, budget time.Duration, report *Report) error {
	if err := o.retry(ctx, report); err != nil {
		return err
	}
	if err := o.walk(ctx, late, report); err != nil {
		return err
	}
	return o.search(ctx, budget, report)
}

// retry tries some of the failed rows again, in a random order, unless the search goes on. If one of them does not
// fail, because it can be timed out or has ended, retry forgets all failed rows, so that the walk tries them.
func (o *overdueRows) retry(ctx context.Context, report *Report) error {
	if len(o.suspects) > 0 {
		return nil
	}
	began, retries := time.Now(), 0
	for id := range o.failed {
		if retries++; retries > maxRetries || time.Since(began) > retryBudget {
			return nil
		}
		statementFailed, err := o.timeOut(ctx, []string{id}, report)
		if err != nil {
			return err
		}
		if !statementFailed {
			clear(o.failed)
			return nil
		}
	}
	return nil
}

// walk times out the overdue rows, page by page. If the statement on a page fails, or other sessions have locked rows
// of the page, walk goes on with the next page. A walk that has spent its budget ends, and the next walk continues
// after its last page. When that next walk reaches the end of the table, it begins again with the first page, and
// counts the locked rows anew.
func (o *overdueRows) walk(ctx context.Context, late time.Duration, report *Report) error {
	resumed := o.after != keyset.Cursor{}
	for spent := time.Duration(0); spent < walkBudget; {
		began, overdue := time.Now(), report.Overdue
		within := -(late + time.Microsecond) // negative also if late is 0: a negative value selects overdue rows
		page, next, err := o.table.Pending(ctx, o.after, within, pageSize)
		o.after = next // zero after an error, so that the next walk begins with the first page
		if err != nil {
			return fmt.Errorf("look for overdue rows: %w", err)
		}
		ids := o.notFailed(page)
		statementFailed, err := o.timeOut(ctx, ids, report)
		switch {
		case err != nil:
			return err
		case statementFailed && len(o.failed) > maxFailed:
			o.forget(ids)
		case statementFailed:
			o.suspects = append(o.suspects, ids)
		}
		if next == (keyset.Cursor{}) {
			if !resumed {
				return nil
			}
			resumed, report.Locked = false, 0
		}
		if mostlyStuck := 2*(report.Overdue-overdue) <= len(page); mostlyStuck {
			spent += time.Since(began)
		}
	}
	return nil
}

// search times out the halves of the suspects until the time budget has passed. A half that fails becomes a suspect,
// unless it is a single row. It goes to the end of the queue, so that the suspects of all pages become smaller at the
// same pace. But if the other half was timed out, it goes to the front, because few more statements then find the rows
// that cannot be timed out.
func (o *overdueRows) search(ctx context.Context, budget time.Duration, report *Report) error {
	for began := time.Now(); len(o.suspects) > 0 && time.Since(began) < budget; {
		suspect := o.suspects[0]
		before := report.Overdue
		var failing [][]string
		for half := range slices.Chunk(suspect, (len(suspect)+1)/2) {
			statementFailed, err := o.timeOut(ctx, half, report)
			if err != nil {
				return err
			}
			if statementFailed && len(half) > 1 {
				failing = append(failing, half)
			}
		}
		o.suspects = o.suspects[1:]
		if report.Overdue > before {
			o.suspects = append(failing, o.suspects...)
		} else {
			o.suspects = append(o.suspects, failing...)
		}
	}
	return nil
}

// timeOut times out rows with one statement, and counts them. If the statement fails, all of the rows count as failed.
// The error is not nil if the cause is outside the rows, because the server is away or ctx has ended.
func (o *overdueRows) timeOut(ctx context.Context, ids []string, report *Report) (statementFailed bool, err error) {
	if len(ids) == 0 {
		return false, nil
	}
	done, locked, err := o.table.TimeOut(ctx, ids)
	report.Overdue += done
	report.Locked += locked
	if err == nil {
		o.succeeded = true
		o.forget(ids)
		return false, nil
	}
	err = fmt.Errorf("time out overdue rows: %w", err)
	answered, isOutage := delay.IsOutage(err)
	if isOutage && !answered || ctx.Err() != nil {
		return false, err
	}
	if isOutage && slices.ContainsFunc(ids, func(id string) bool { return o.failed[id] == nil }) {
		o.outage = err
	}
	for _, id := range ids {
		o.failed[id] = err
	}
	return true, nil
}

func (o *overdueRows) forget(ids []string) {
	for _, id := range ids {
		delete(o.failed, id)
	}
}

// notFailed returns the ids of those rows of a page that have not failed.
func (o *overdueRows) notFailed(page []delay.Message) []string {
	ids := make([]string, 0, len(page))
	for _, row := range page {
		if o.failed[row.ID] == nil {
			ids = append(ids, row.ID)
		}
	}
	return ids
}
