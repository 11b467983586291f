package reconcile

import (
	"context"
	"errors"
	"time"
)

// errQueue marks errors of the queue. They degrade a sweep; errors of the table fail it.
type errQueue struct{ error }

func (e errQueue) Unwrap() error { return e.error }

// queueError marks err, unless it is nil.
func queueError(err error) error {
	if err == nil {
		return nil
	}
	return errQueue{err}
}

// sweep compares and repairs, under the lock.
func (r *Reconciler) sweep(ctx context.Context) (report Report) {
	report = Report{StartedAt: time.Now().UTC(), Outcome: OK}
	defer func() { report.Took = time.Since(report.StartedAt).Seconds() }()
	note := func(err error) {
		if _, ok := errors.AsType[errQueue](err); ok {
			report.fail(Degraded, err)
		} else if err != nil {
			report.fail(Failed, err)
		}
	}
	// First what needs no queue, and is late already.
	note(r.overdue.walk(ctx, r.table, r.cfg.Grace, &report))
	note(r.overdue.takeApart(ctx, r.table, r.apartBudget(), &report))

	renamed, err := r.mend(ctx)
	report.SetAside = len(renamed)
	if err != nil {
		note(queueError(err))
		return report
	}
	intact, err := r.intact(ctx)
	if err != nil {
		note(queueError(err))
		return report
	}
	if intact {
		note(r.refill(ctx, &report, r.cfg.Lookahead))
	} else {
		report.Full = true
		note(r.restore(ctx, &report))
	}
	note(r.removeOrphans(ctx, &report))
	return report
}

// mend has the queue set aside what it cannot use. It gives a Redis that hangs a second.
func (r *Reconciler) mend(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	renamed, err := r.queue.Mend(ctx)
	for _, name := range renamed {
		r.log.ErrorContext(ctx, "a key held a value of another type than the queue's and was renamed; find the client that writes to this Redis", "key", name)
	}
	return renamed, err
}

// restore fills a queue that has lost its memory. Only a walk that ended says so: what dies on the way,
// or a queue that is wiped meanwhile, is restored again.
func (r *Reconciler) restore(ctx context.Context, report *Report) error {
	r.log.InfoContext(ctx, "the queue is new or was wiped: all pending rows are compared with it")
	if err := r.queue.BeginRestore(ctx); err != nil {
		return queueError(err)
	}
	if err := r.refill(ctx, report, -1); err != nil {
		return err
	}
	return queueError(r.queue.EndRestore(ctx))
}

// progressEvery is how many rows a long sweep compares between two lines of log.
const progressEvery = 100_000

// refill walks the pending rows up to ahead, all of them if it is negative, and repairs their tasks.
func (r *Reconciler) refill(ctx context.Context, report *Report, ahead time.Duration) error {
	after := ""
	for {
		ids, left, next, err := r.table.Pending(ctx, after, ahead, pageSize)
		if err != nil {
			return err
		}
		if err := r.repairPage(ctx, report, ids, left, time.Now()); err != nil {
			return queueError(err)
		}
		report.Examined += len(ids)
		if report.Examined%progressEvery == 0 && len(ids) > 0 {
			r.log.InfoContext(ctx, "sweep goes on", "examined", report.Examined, "missing", report.Missing)
		}
		if next == "" {
			return nil
		}
		after = next
	}
}

// repairPage compares a page of rows with their tasks. left was true at readAt: two clocks are compared
// by what each says is left, and the time between their answers is taken off.
func (r *Reconciler) repairPage(ctx context.Context, report *Report, ids []string, left []time.Duration, readAt time.Time) error {
	if len(ids) == 0 {
		return nil
	}
	asked := time.Since(readAt)
	places, err := r.queue.Locate(ctx, ids)
	if err != nil {
		return err
	}
	var missing, late, again []int
	for i, place := range places {
		switch {
		case place.Leased:
		case place.Dead:
			report.Dead++
		case !place.Scheduled:
			missing = append(missing, i)
		case left[i] < 0, place.Failed:
			// The row is overdue, and its task waits to be tried again: late on purpose.
		case place.Left > left[i]-asked+tolerance:
			late = append(late, i)
		}
	}
	again = append(append(again, missing...), late...)
	if err := r.reschedule(ctx, ids, left, again, readAt); err != nil {
		return err
	}
	report.Missing += len(missing)
	report.Late += len(late)
	return nil
}

// reschedule adds the tasks at some places of a page.
func (r *Reconciler) reschedule(ctx context.Context, ids []string, left []time.Duration, places []int, readAt time.Time) error {
	if len(places) == 0 {
		return nil
	}
	lost, remaining := make([]string, len(places)), make([]time.Duration, len(places))
	for n, i := range places {
		lost[n], remaining[n] = ids[i], left[i]-time.Since(readAt)
	}
	return r.queue.Schedule(ctx, lost, remaining)
}

// removeOrphans drops tasks whose rows do not exist: the database was restored from a backup, say. A task
// whose row has ended some other way is no orphan; the worker drops it when it is due.
func (r *Reconciler) removeOrphans(ctx context.Context, report *Report) error {
	var tableError error
	n, err := r.queue.RemoveOrphans(ctx, r.cfg.Lookahead, func(ctx context.Context, ids []string) (unknown []string, err error) {
		unknown, tableError = r.table.Unknown(ctx, ids)
		return unknown, tableError
	})
	report.Orphaned += n
	if tableError != nil {
		return tableError
	}
	return queueError(err)
}
