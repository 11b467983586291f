package reconcile

import (
	"context"
	"errors"
	"time"

	"example.com/shop/internal/delay"
)

// queueError marks errors of the queue. They make a sweep degraded; errors of the table make it failed.
type queueError struct{ error }

func (e queueError) Unwrap() error { return e.error }

// asQueueError marks err, unless it is nil.
func asQueueError(err error) error {
	if err == nil {
		return nil
	}
	return queueError{err}
}

// searchBudget returns the time that a sweep spends on the search for rows that cannot be timed out. It is half an interval
// of the schedule, so that sweeps keep to their schedule, but at least a second and at most 10 s.
func (r *Reconciler) searchBudget() time.Duration {
	return max(min(r.interval/2, 10*time.Second), time.Second)
}

// sweep compares and repairs. The caller has the lock of the sweeps.
func (r *Reconciler) sweep(ctx context.Context) (report Report) {
	report = Report{StartedAt: time.Now().UTC(), Outcome: OK}
	defer func() { report.Took = time.Since(report.StartedAt).Seconds() }()
	noteError := func(err error) {
		if _, ok := errors.AsType[queueError](err); ok {
			report.worsen(Degraded, err)
		} else if err != nil {
			report.worsen(Failed, err)
		}
	}
	// The overdue rows come first, because they are late already. They are timed out without the queue.
	grace := r.cfg.Grace
	if r.queue == nil { // no worker times out rows
		grace = 0
	}
	noteError(r.overdue.run(ctx, grace, r.searchBudget(), &report))
	if r.queue == nil {
		return report
	}

	ok, err := intact(ctx, r.queue)
	if err != nil {
		noteError(asQueueError(err))
		return report
	}
	if ok[0] {
		noteError(r.repairTasks(ctx, &report, r.cfg.Lookahead))
	} else {
		report.Full = true
		noteError(r.restore(ctx, &report))
	}
	return report
}

// restore adds the tasks of all pending rows to a queue that was wiped or is new. It completes the restore markers only after the last page. If the
// process dies, or Redis is wiped meanwhile, the next sweep restores again.
func (r *Reconciler) restore(ctx context.Context, report *Report) error {
	r.log.InfoContext(ctx, "the queue is new or was wiped: all pending rows are compared with it")
	if err := r.queue.BeginRestore(ctx); err != nil {
		return asQueueError(err)
	}
	if err := r.repairTasks(ctx, report, All); err != nil {
		return err
	}
	return asQueueError(r.queue.EndRestore(ctx))
}

// progressEvery is the number of compared rows between two log lines of a long sweep. With a larger number an operator waits
// longer for a line, and with a smaller one more lines fill the log. It is a multiple of pageSize.
const progressEvery = 100_000

// repairTasks compares pending rows with the queue, and repairs their tasks. The argument within selects the rows, as for
// [Table.Pending].
func (r *Reconciler) repairTasks(ctx context.Context, report *Report, within time.Duration) error {
	after := ""
	for {
		readAt := time.Now()
		page, next, err := r.table.Pending(ctx, after, within, pageSize)
		if err != nil {
			return err
		}
		if err := r.repairPage(ctx, report, page, readAt); err != nil {
			return asQueueError(err)
		}
		report.Examined += len(page)
		if report.Examined%progressEvery == 0 && len(page) > 0 {
			r.log.InfoContext(ctx, "sweep in progress", "examined", report.Examined, "missing", report.Missing)
		}
		if next == "" {
			return nil
		}
		after = next
	}
}

// repairPage compares a page of rows, read from readAt on, with their tasks. It schedules the tasks that are missing or
// due too late.
func (r *Reconciler) repairPage(ctx context.Context, report *Report, page []delay.Message, readAt time.Time) error {
	if len(page) == 0 {
		return nil
	}
	ids := make([]string, len(page))
	for i, row := range page {
		ids[i] = row.ID
	}
	// Compute the time left of a row from the moment before the request to Redis. After the reply it would be shorter
	// by the time that Redis took, and tasks would seem to be late.
	asked := time.Now()
	locations, err := r.queue.Locate(ctx, ids)
	if err != nil {
		return err
	}
	var repairs []delay.Message
	missing, late := 0, 0
	for i, task := range locations {
		switch {
		case task.State == delay.Leased: // a worker has it
		case task.State == delay.Dead:
			report.Dead++
		case task.State == delay.Absent:
			missing++
			repairs = append(repairs, page[i])
		case page[i].Due().Before(readAt), task.Attempts > 0:
			// The row was overdue, or an attempt failed. The worker may have postponed the task until its next attempt, so
			// do not move it forward.
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
