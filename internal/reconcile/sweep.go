package reconcile

import (
	"context"
	"time"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
)

// searchBudget returns the time that a sweep spends on the suspects of [overdueRows]. It is half an interval of the
// schedule, so that sweeps keep to their schedule, but at least a second and at most 10 s.
func (r *Reconciler) searchBudget() time.Duration {
	return max(min(r.interval/2, 10*time.Second), time.Second)
}

// sweep compares and repairs. The caller has the lock of the sweeps.
func (r *Reconciler) sweep(ctx context.Context) (report Report) {
	report = Report{StartedAt: time.Now().UTC(), Outcome: OK}
	defer func() { report.Took = time.Since(report.StartedAt).Seconds() }()
	// The overdue rows come first, because they are late already. They are timed out without the queue.
	report.worsen(Failed, r.overdue.run(ctx, r.searchBudget(), &report))

	limited, cancel := context.WithTimeout(ctx, redisTimeout)
	marked, err := delay.Intact(limited, r.queue)
	cancel()
	if err != nil {
		report.worsen(Degraded, err)
		return report
	}
	// A sweep that has found the markers does not set them again, so that the next probe notices if Redis was wiped
	// meanwhile.
	if compared := r.repairTasks(ctx, &report); compared && !marked[0] {
		r.log.InfoContext(ctx, "the queue is new or was wiped; its tasks are added when they are due soon",
			"within", r.cfg.Lookahead, "added", report.Missing)
		report.worsen(Degraded, r.queue.MarkIntact(ctx))
	}
	return report
}

// repairTasks compares the pending rows that are due within the look-ahead with the queue, and repairs their tasks. It
// reports whether it has compared all rows. An error of the table makes the report Failed, one of the queue Degraded.
func (r *Reconciler) repairTasks(ctx context.Context, report *Report) (compared bool) {
	var after keyset.Cursor
	for {
		readAt := time.Now()
		page, next, err := r.table.Pending(ctx, after, r.cfg.Lookahead, pageSize)
		if err != nil {
			report.worsen(Failed, err)
			return false
		}
		if err := r.repairPage(ctx, report, page, readAt); err != nil {
			report.worsen(Degraded, err)
			return false
		}
		report.Examined += len(page)
		if next == (keyset.Cursor{}) {
			return true
		}
		after = next
	}
}

// repairPage compares a page of rows, which was read after readAt, with their tasks. It schedules the tasks that are
// missing or due too late. Its errors are errors of the queue.
func (r *Reconciler) repairPage(ctx context.Context, report *Report, page []delay.Message, readAt time.Time) error {
	if len(page) == 0 {
		return nil
	}
	ids := make([]string, len(page))
	for i, row := range page {
		ids[i] = row.ID
	}
	// The time left of a row counts from before the request, because the time that Redis takes is no lateness.
	asked := time.Now()
	locations, err := r.queue.Locate(ctx, ids)
	if err != nil {
		return err
	}
	located := time.Now()
	var repairs []delay.Message
	missing, late := 0, 0
	for i, task := range locations {
		switch {
		case task.State == delay.Leased: // a worker has it
		case task.State == delay.Dead:
			report.Dead++
		case task.State == delay.Absent:
			if page[i].Due().After(located) { // otherwise a worker may have timed the row out since it was read
				missing++
			}
			repairs = append(repairs, page[i])
		case page[i].Due().Before(readAt), task.Attempts > 0:
			// The row was overdue, or an attempt failed. The worker may have postponed the task until its next
			// attempt, so do not move it forward.
		case task.Left-page[i].Due().Sub(asked) > tolerance:
			late++
			repairs = append(repairs, page[i])
		}
	}
	if err := r.queue.Schedule(ctx, repairs...); err != nil {
		return err
	}
	report.Missing += missing
	report.Late += late
	return nil
}
