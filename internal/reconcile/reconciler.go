package reconcile

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/robfig/cron/v3"
)

// ErrBusy means that another process, or another goroutine, sweeps right now.
var ErrBusy = errors.New("another sweep is under way")

// Reconciler sweeps. Any number may run: a PostgreSQL advisory lock lets one of them at a time. The lock saves work:
// if a session ends during a sweep, and another sweep begins, the two do the same things. If Redis is wiped, too, while
// two restore it, the one may take the other's sentinel for its own; what is missing is found before it is due.
type Reconciler struct {
	db       *sql.DB
	table    Table
	queue    Queue
	cfg      Config
	schedule cron.Schedule
	gap      time.Duration // the longest between two activations of the schedule
	lockIdle time.Duration
	log      *slog.Logger
	metrics  metrics

	overdue overdue
}

// New returns a reconciler that keeps its lock and its reports in db, or says what is wrong with cfg.
func New(db *sql.DB, table Table, queue Queue, cfg Config, log *slog.Logger, reg prometheus.Registerer) (*Reconciler, error) {
	cfg, schedule, gap, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Reconciler{
		db: db, table: inTime{table}, queue: queue, cfg: cfg, schedule: schedule, gap: gap, lockIdle: lockIdle,
		overdue: overdue{why: make(map[string]error), most: mostFailing},
		log:     log.With("kind", queue.Kind()), metrics: newMetrics(reg, queue.Kind()),
	}, nil
}

// Bound is how long past its deadline a row may still be pending with Redis down or wiped: one interval
// of the schedule and the grace.
func (r *Reconciler) Bound() time.Duration { return r.gap + r.cfg.Grace }

// Run sweeps by the schedule, at the start, when a probe finds Redis wiped or unreachable, and in any case twice in each
// look-ahead, until ctx ends; then it returns nil.
func (r *Reconciler) Run(ctx context.Context) error { return r.run(ctx, r.sweepByItself) }

func (r *Reconciler) run(ctx context.Context, sweep func(context.Context)) error {
	// The schedule may have longer gaps than it seems, and cron goes by the wall clock, which may be set back.
	longest := r.cfg.Lookahead / 2
	idle := time.NewTimer(longest)
	defer idle.Stop()
	// One job for the schedule and the probes, so that they skip each other. Recover must be the
	// innermost wrapper: a panic that passes SkipIfStillRunning of cron v3.0.1 keeps its token, and every
	// later sweep is skipped.
	logger := cronLog{r.log}
	job := cron.NewChain(cron.SkipIfStillRunning(logger), cron.Recover(logger)).
		Then(cron.FuncJob(func() {
			idle.Reset(longest)
			sweep(ctx)
		}))
	c := cron.New(cron.WithLocation(time.UTC), cron.WithLogger(logger))
	c.Schedule(r.schedule, job)
	c.Start()
	defer func() { <-c.Stop().Done() }()

	job.Run()
	probes := time.NewTicker(r.cfg.Probe)
	defer probes.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-idle.C:
			idle.Reset(longest) // the job may be skipped
			job.Run()
		case <-probes.C:
			if intact, err := r.intact(ctx); err != nil || !intact {
				job.Run()
			}
		}
	}
}

// intact tells whether Redis has all that it should. It gives a Redis that hangs a second: what is overdue is
// cancelled once a sweep, whatever becomes of Redis, and the next sweep waits for the end of this one.
func (r *Reconciler) intact(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return r.queue.Intact(ctx)
}

// sweepByItself is a sweep that no one waits for.
func (r *Reconciler) sweepByItself(ctx context.Context) {
	report, err := r.Sweep(ctx)
	// A sweep that an operator asks for, in a process that may never sweep again, must not leave the gauge up.
	r.metrics.stuck.Set(float64(report.Locked + report.Failed))
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, ErrBusy):
		r.log.DebugContext(ctx, "sweep left to another instance")
	case err != nil:
		r.log.ErrorContext(ctx, "sweep failed", "error", err)
	case report.Outcome != OK:
		r.log.WarnContext(ctx, "sweep "+string(report.Outcome), "report", report)
	case report.Repairs() > 0:
		r.log.WarnContext(ctx, "sweep repaired", "report", report)
	default:
		r.log.DebugContext(ctx, "sweep found nothing", "report", report)
	}
}

// Sweep compares and repairs once. The error is [ErrBusy], or what kept the sweep from starting; what went
// wrong in it is in the report.
func (r *Reconciler) Sweep(ctx context.Context) (Report, error) {
	conn, err := r.lock(ctx)
	if err != nil {
		r.metrics.notStarted(err)
		return Report{}, err
	}
	defer r.unlock(ctx, conn)
	report := r.sweep(ctx)
	r.metrics.observe(report)
	if err := r.record(ctx, conn, report); err != nil && ctx.Err() == nil {
		r.log.WarnContext(ctx, "the sweep's report is not recorded", "error", err)
	}
	return report, nil
}

// lockIdle is how long a sweep may hold its lock. One that takes longer hangs, or walks over millions of rows: others
// may sweep, too, then.
const lockIdle = 2 * time.Minute

// lock takes the sweep's lock, which is the session's: it goes with the connection if the process dies. The session
// itself asks for nothing more, so that the database ends it if the process hangs.
func (r *Reconciler) lock(ctx context.Context) (*sql.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	conn, err := r.db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to sweep: %w", err)
	}
	var locked bool
	err = conn.QueryRowContext(ctx, `
		SELECT pg_try_advisory_lock(hashtextextended($1, 0)) FROM set_config('idle_session_timeout', $2, false)`,
		r.lockName(), strconv.FormatInt(r.lockIdle.Milliseconds(), 10)).Scan(&locked)
	if err == nil && locked {
		return conn, nil
	}
	discard(conn) // its settings are for a sweep, and the lock may be held: its answer may be lost
	if err != nil {
		return nil, fmt.Errorf("lock to sweep: %w", err)
	}
	return nil, ErrBusy
}

// unlock gives the lock back at once, and ends a session that nobody else may use.
func (r *Reconciler) unlock(ctx context.Context, conn *sql.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = conn.ExecContext(ctx, `SELECT pg_advisory_unlock(hashtextextended($1, 0))`, r.lockName()) // or it goes with the session
	discard(conn)
}

func (r *Reconciler) lockName() string { return "reconcile " + r.queue.Kind() }

// discard closes a connection for good, and with it the session and its locks, instead of giving it back
// to the pool.
func discard(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	conn.Close()
}

// record keeps the report for whichever process is asked for the last one. A sweep that has lost its lock has lost
// the connection too, and does not overwrite another's.
func (r *Reconciler) record(ctx context.Context, conn *sql.Conn, report Report) error {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	text, err := json.Marshal(report)
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	_, err = conn.ExecContext(ctx, `
		INSERT INTO reconcile_reports (kind, report) VALUES ($1, $2)
		ON CONFLICT (kind) DO UPDATE SET report = excluded.report`, r.queue.Kind(), string(text))
	return err
}

// databaseTimeout bounds each thing that a sweep asks of the database. A connection whose other end is gone
// without a word would be waited for forever, and with it every later sweep.
const databaseTimeout = 15 * time.Second

// inTime is a table that answers in time, or with an error.
type inTime struct{ table Table }

func (t inTime) Pending(ctx context.Context, after string, ahead time.Duration, limit int) ([]string, []time.Duration, string, error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	return t.table.Pending(ctx, after, ahead, limit)
}

func (t inTime) Unknown(ctx context.Context, ids []string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	return t.table.Unknown(ctx, ids)
}

func (t inTime) Overdue(ctx context.Context, after string, grace time.Duration, limit int) ([]string, string, error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	return t.table.Overdue(ctx, after, grace, limit)
}

func (t inTime) TimeOut(ctx context.Context, ids []string) (done, held int, err error) {
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	return t.table.TimeOut(ctx, ids)
}

// Last returns the report of the last sweep, of whatever process; nil before the first.
func (r *Reconciler) Last(ctx context.Context) (*Report, error) {
	var text []byte
	err := r.db.QueryRowContext(ctx, `SELECT report FROM reconcile_reports WHERE kind = $1`, r.queue.Kind()).Scan(&text)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the last report: %w", err)
	}
	var report Report
	if err := json.Unmarshal(text, &report); err != nil {
		return nil, fmt.Errorf("decode the last report: %w", err)
	}
	return &report, nil
}

// cronLog hears of panics and of skipped activations.
type cronLog struct{ log *slog.Logger }

func (l cronLog) Info(msg string, keysAndValues ...any) { l.log.Debug("cron: "+msg, keysAndValues...) }

func (l cronLog) Error(err error, msg string, keysAndValues ...any) {
	l.log.Error("cron: "+msg, append(keysAndValues, "error", err)...)
}
