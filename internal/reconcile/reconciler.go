package reconcile

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/robfig/cron/v3"
	"golang.org/x/sync/errgroup"

	"example.com/shop/internal/background"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
)

// Reconciler runs sweeps. Any number of reconcilers may run, in any number of processes: a PostgreSQL advisory lock
// lets one of them sweep at a time.
//
// The lock only saves work. If the transaction that has the lock ends during a sweep, another sweep may begin, and
// both may do the same repairs. If Redis is wiped while a sweep repairs an earlier wipe, this sweep sets the markers
// although tasks are missing. Then later sweeps find these tasks, or time out their rows, within [Reconciler.Bound].
type Reconciler struct {
	db       *sql.DB
	kind     string // of the tasks that time out the rows
	table    pendingRows
	queue    *delay.Queue
	cfg      Config
	schedule cron.Schedule
	interval time.Duration // the longest time between two sweeps
	lockIdle time.Duration
	asked    chan struct{} // a value asks for a sweep, after a probe
	log      *slog.Logger
	metrics  metrics

	overdue overdueRows
	outcome SweepOutcome // of the last sweep; only sweepAndLog uses it
}

// pendingRows is the part of a table of package timeout that a reconciler uses.
type pendingRows interface {
	Pending(ctx context.Context, after keyset.Cursor, within time.Duration, limit int) (
		page []delay.Message, next keyset.Cursor, err error)
	TimeOut(ctx context.Context, ids []string) (done, locked int, err error)
}

// New returns a reconciler of a table whose rows are timed out by the tasks of a kind. It keeps its lock and its
// reports in db. An error describes an invalid field of cfg.
func New(
	db *sql.DB, kind string, table pendingRows, queue *delay.Queue, cfg Config,
	log *slog.Logger, reg prometheus.Registerer,
) (*Reconciler, error) {
	cfg, schedule, interval, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Reconciler{
		db: db, kind: kind, table: table, queue: queue,
		cfg: cfg, schedule: schedule, interval: interval, lockIdle: lockIdle, asked: make(chan struct{}), outcome: OK,
		overdue: overdueRows{table: table, failed: make(map[string]error)},
		log:     log.With("kind", kind), metrics: newMetrics(reg, kind),
	}, nil
}

// Bound returns how long past its deadline a row may be pending while Redis is down or wiped: the grace and one
// interval of the schedule, or half a look-ahead if the schedule is a cron expression.
func (r *Reconciler) Bound() time.Duration { return r.interval + grace }

// Lookahead returns the time within which a row must be due so that the sweeps compare it with the queue.
func (r *Reconciler) Lookahead() time.Duration { return r.cfg.Lookahead }

// DescribeBound returns the bound and its parts, for operators.
func (r *Reconciler) DescribeBound() string {
	if _, every := r.schedule.(cron.ConstantDelaySchedule); every {
		return fmt.Sprintf("%v (an interval of %v and a grace of %v)", r.Bound(), r.interval, grace)
	}
	return fmt.Sprintf("%v (half a look-ahead, %v, because the schedule is a cron expression, and a grace of %v)",
		r.Bound(), r.interval, grace)
}

// Run runs reconcilers whose queues have the same Redis client until ctx ends, and then returns nil. A reconciler
// sweeps at the start, by its schedule, and when a probe finds that Redis was wiped, does not answer, has restarted or
// has failed over. A sweep begins at the latest half a look-ahead after the previous one began. If the previous sweep
// is still under way when a sweep is due by the schedule, the next one begins when the previous one ends. One probe
// looks at Redis for all queues.
func Run(ctx context.Context, reconcilers ...*Reconciler) error {
	var components errgroup.Group
	for _, r := range reconcilers {
		components.Go(func() error { return r.run(ctx, r.sweepAndLog) })
	}
	if len(reconcilers) > 0 {
		components.Go(func() error { return probe(ctx, reconcilers) })
	}
	return components.Wait()
}

// probe reads the markers and the replication ids of Redis until ctx ends. It asks each reconciler for a sweep whose
// markers are missing. It asks all reconcilers if Redis does not answer, answers again, or has other replication ids
// because it has restarted or failed over: then tasks may be lost.
//
// A reconciler that is sweeping already is not asked. If Redis loses tasks that this sweep has compared, the next sweep
// by the schedule finds that they are missing; after a wipe the next probe asks again.
func probe(ctx context.Context, reconcilers []*Reconciler) error {
	queues := make([]*delay.Queue, len(reconcilers))
	for i, r := range reconcilers {
		queues[i] = r.queue
	}
	// ids is "" if Redis does not answer, so that the ids of its next answer are other ones.
	read := func(ctx context.Context) (intact []bool, ids string, err error) {
		ctx, cancel := context.WithTimeout(ctx, redisTimeout)
		defer cancel()
		if intact, err = delay.Intact(ctx, queues...); err == nil {
			ids = queues[0].ReplicationIDs(ctx)
		}
		return intact, ids, err
	}
	_, last, _ := read(ctx)
	return background.Every(ctx, probeEvery, reconcilers[0].log, func(ctx context.Context) {
		intact, ids, err := read(ctx)
		for i, r := range reconcilers {
			if err == nil && intact[i] && ids == last {
				continue
			}
			select {
			case r.asked <- struct{}{}:
			default: // it sweeps
			}
		}
		last = ids
	})
}

// redisTimeout is the longest time that a probe or a sweep waits for the markers of a Redis that hangs, because a sweep
// that has timed out the overdue rows must not delay the next sweep.
const redisTimeout = time.Second

// run calls sweep at the times that [Run] describes.
func (r *Reconciler) run(ctx context.Context, sweep func(context.Context)) error {
	for {
		began := time.Now()
		background.Do(ctx, r.log, sweep)
		// The wait has a bound besides the schedule, because a cron expression follows the wall clock, which an
		// operator may set back.
		idle := time.Until(began.Add(r.cfg.Lookahead / 2))
		if next := r.schedule.Next(began.UTC()); !next.IsZero() {
			idle = min(idle, time.Until(next))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(idle):
		case <-r.asked:
		}
	}
}

// sweepAndLog sweeps, and logs the result. It logs an outcome other than OK only if the previous sweep had a different
// outcome, because each probe starts a sweep while Redis is down.
func (r *Reconciler) sweepAndLog(ctx context.Context) {
	report, err := r.Sweep(ctx)
	switch {
	case ctx.Err() != nil: // the reconciler stops
		return
	case errors.Is(err, ErrSweeping):
		r.log.DebugContext(ctx, "no sweep, because another process is sweeping")
		if last, _, err := r.Last(ctx); err == nil && last != nil {
			r.metrics.setStuck(*last)
		}
		return
	case err != nil: // this sweep counted no rows, so the gauge keeps its value
		report.worsen(Failed, err)
	default:
		// Sweep does not set the gauge, because a sweep that an operator starts may be the only one of its process, and
		// then the gauge would keep its value until the process ends.
		r.metrics.setStuck(report)
	}
	before := r.outcome
	r.outcome = report.Outcome
	switch {
	case report.Outcome == before && (before != OK || report.Repairs() == 0):
		r.log.DebugContext(ctx, "sweep "+string(report.Outcome), "report", report)
	case report.Outcome != OK:
		r.log.WarnContext(ctx, "sweep "+string(report.Outcome)+"; the next sweeps log when this changes", "report", report)
	case before != OK:
		r.log.InfoContext(ctx, "sweep ok again", "report", report)
	default:
		r.log.WarnContext(ctx, "sweep made repairs", "report", report)
	}
}

// Sweep compares and repairs once. It returns [ErrSweeping] if another sweep is under way, and another error if it
// could not start. Errors during the sweep are in the report.
func (r *Reconciler) Sweep(ctx context.Context) (Report, error) {
	// The transaction of the lock ends with its context. So a timer ends this context while PostgreSQL must answer, and
	// not during the sweep.
	locked, cancel := context.WithCancel(ctx)
	defer cancel()
	limit := time.AfterFunc(databaseTimeout, cancel)
	defer limit.Stop()
	tx, err := r.lock(locked)
	if expired := !limit.Stop(); expired {
		err = fmt.Errorf("PostgreSQL did not answer within %v: %w", databaseTimeout, cmp.Or(err, context.Canceled))
	}
	if err != nil {
		r.metrics.notStarted(err)
		return Report{}, err
	}
	report := r.sweep(ctx)
	r.metrics.observe(report)
	limit.Reset(databaseTimeout)
	if err := r.recordAndUnlock(locked, tx, report); err != nil && ctx.Err() == nil {
		r.log.WarnContext(ctx, "the report of the sweep could not be recorded", "within", databaseTimeout, "error", err)
	}
	return report, nil
}

// recordAndUnlock stores the report, so that any process can read the last one, and commits the transaction of the
// lock, which releases the lock. A sweep that has lost the lock has lost this transaction too, so it cannot overwrite
// a later report.
//
// The stored start is a time by the database's clock, because other processes compare it with the present time.
func (r *Reconciler) recordAndUnlock(ctx context.Context, tx *sql.Tx, report Report) error {
	text, _ := json.Marshal(report) // numbers and texts cause no error
	_, err := tx.ExecContext(ctx, `
		INSERT INTO reconcile_reports (kind, report)
		VALUES ($1, jsonb_set($2, '{started_at}', to_jsonb(clock_timestamp() - $3 * interval '1 microsecond')))
		ON CONFLICT (kind) DO UPDATE SET report = excluded.report`,
		r.kind, string(text), int64(report.Took*1e6))
	if err != nil {
		return err
	}
	return tx.Commit()
}

// Last returns the report of the last sweep of any process, or nil if there was none. age is the time since that sweep
// began, by the database's clock.
func (r *Reconciler) Last(ctx context.Context) (report *Report, age time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	var text []byte
	var seconds float64
	err = r.db.QueryRowContext(ctx, `
		SELECT report, extract(epoch FROM clock_timestamp() - (report->>'started_at')::timestamptz)
		FROM reconcile_reports WHERE kind = $1`, r.kind).Scan(&text, &seconds)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, 0, nil
	case err != nil:
		return nil, 0, fmt.Errorf("read the last report: %w", err)
	}
	if err := json.Unmarshal(text, &report); err != nil {
		return nil, 0, fmt.Errorf("decode the last report: %w", err)
	}
	report.StartedAt = report.StartedAt.UTC() // the database wrote it in the time zone of its session
	return report, time.Duration(seconds * float64(time.Second)), nil
}

// databaseTimeout is the longest time for a call to the database, because a connection whose other end is gone would
// delay a sweep, and with it all later ones.
const databaseTimeout = 15 * time.Second
