package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
)

// overdueRows times out the overdue rows of a table. A statement on several rows fails if one of them cannot be timed
// out, and the other rows must not wait for this one. So each sweep takes three steps:
//
//   - [overdueRows.walk] times out page after page, without the rows that have failed. If the statement on a page
//     fails, all rows of the page have failed, and become suspects.
//   - [overdueRows.search] times out the suspects one by one. A suspect that fails alone is no suspect any more, but
//     stays a failed row.
//   - [overdueRows.retry] tries some of the failed rows again. If one of them does not fail any more, the cause of the
//     failures may be gone, so all failed rows become suspects, and the search goes on.
//
// A statement on a row may fail only after the statement_timeout. Then the search of a sweep gets to few suspects, and
// the next sweeps go on with the others. Rows that become overdue meanwhile do not wait, because the walk comes first.
//
// A statement may fail for a reason that is probably outside the rows ([delay.Outage]). If the server answered, some of
// the rows may be the cause all the same, so the sweep goes on. If no statement of it succeeds, it was an outage, and
// the rows of the sweep do not count as failed.
type overdueRows struct {
	table pendingRows

	mu       sync.Mutex       // an operator's sweep may meet one that hangs and has lost the lock of the sweeps
	after    keyset.Cursor    // where the next walk begins: the argument after of [pendingRows.Pending]
	failed   map[string]error // the last error of each row of a failed statement, by id; the walk omits these rows
	suspects []string         // failed rows that the search tries alone
	retryAt  time.Time        // no retry begins before

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
	// retryBudget is the time after which a retry tries no further row, and retryPause is the pause after a retry, as a
	// multiple of the time that it took. So failed rows take a small part of the time, also if sweeps follow each other
	// without a pause.
	retryBudget = time.Second
	retryPause  = 10
)

// run times out the rows that are late by more than the grace. The search begins no statement after the time budget.
func (o *overdueRows) run(ctx context.Context, budget time.Duration, report *Report) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer func() { report.setFailed(o.failed) }()
	failed, suspects := maps.Clone(o.failed), slices.Clone(o.suspects)
	o.succeeded, o.outage = false, nil
	err := o.steps(ctx, budget, report)
	if o.outage != nil && !o.succeeded {
		o.failed, o.suspects = failed, suspects
		return cmp.Or(err, o.outage)
	}
	return err
}

// steps takes the three steps, and searches again, because the retry may have found suspects.
func (o *overdueRows) steps(ctx context.Context, budget time.Duration, report *Report) error {
	if err := o.walk(ctx, report); err != nil {
		return err
	}
	searchUntil := time.Now().Add(budget)
	if err := o.search(ctx, searchUntil, report); err != nil {
		return err
	}
	if err := o.retry(ctx, report); err != nil {
		return err
	}
	return o.search(ctx, searchUntil, report)
}

// walk times out the overdue rows, page by page. If the statement on a page fails, or other sessions have locked rows
// of the page, walk goes on with the next page. A walk that has spent its budget ends, and the next walk continues
// after its last page. When that next walk reaches the end of the table, it begins again with the first page, and
// counts the locked rows anew.
func (o *overdueRows) walk(ctx context.Context, report *Report) error {
	resumed := o.after != keyset.Cursor{}
	for spent := time.Duration(0); spent < walkBudget; {
		began, overdue := time.Now(), report.Overdue
		page, next, err := o.table.Pending(ctx, o.after, -grace, pageSize)
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
			o.suspects = append(o.suspects, ids...)
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

// search times out the suspects one by one, and begins no statement after until. It tries them in a random order.
// Otherwise the same rows could come first in each sweep of what looks like an outage, and the search would never get
// to the rows that can be timed out, which prove that there is no outage.
func (o *overdueRows) search(ctx context.Context, until time.Time, report *Report) error {
	rand.Shuffle(len(o.suspects), func(i, j int) { o.suspects[i], o.suspects[j] = o.suspects[j], o.suspects[i] })
	for len(o.suspects) > 0 && time.Now().Before(until) {
		if _, err := o.timeOut(ctx, o.suspects[:1], report); err != nil {
			return err
		}
		o.suspects = o.suspects[1:]
	}
	return nil
}

// retry tries some of the failed rows again, in a random order, unless there are suspects left. If one of them does not
// fail, because it can be timed out or has ended, all of them become suspects.
func (o *overdueRows) retry(ctx context.Context, report *Report) error {
	began := time.Now()
	if len(o.suspects) > 0 || began.Before(o.retryAt) {
		return nil
	}
	defer func() { o.retryAt = time.Now().Add(retryPause * time.Since(began)) }()
	for id := range o.failed {
		statementFailed, err := o.timeOut(ctx, []string{id}, report)
		switch {
		case err != nil:
			return err
		case !statementFailed:
			o.suspects = slices.Collect(maps.Keys(o.failed))
			return nil
		case time.Since(began) > retryBudget:
			return nil
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
