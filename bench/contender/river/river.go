// Package river times out orders with River, a job queue on PostgreSQL: https://riverqueue.com/docs.
//
// An order is a job with the time when the order is due. One client, the elected leader, looks at the scheduled jobs
// every 5 seconds. It makes those available that are due before its next look. Each client fetches the available jobs
// when they are due, and runs a worker for each job.
//
// A job that is inserted at least 5 seconds before it is due is therefore available in time. A job that is inserted
// later waits for the leader's next look, and can be up to 5 seconds late. River has no public setting for that
// interval. A worker gets one job at a time, so each order is cancelled in a transaction of its own. A job that is done
// stays in the table for a day.
//
// If a process is killed, its jobs in progress run again only after RescueStuckJobsAfter, an hour by default. The
// leader looks for such jobs every 30 seconds. If the killed process was the leader, another client becomes the leader
// after up to 21 seconds: the leader's row expires after 15 seconds, and the other clients try every 5 to 6 seconds.
package river

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"example.com/shop/bench/contender"
)

// Contenders has the two variants.
var Contenders = []contender.Info{
	info("River, as shipped",
		"100 workers, as in the guide; the defaults: a fetch each second, a rescue after an hour",
		variant{workers: 100, timeout: time.Minute}), // the default of JobTimeout
	info("River, tuned",
		"500 workers, a fetch every 50 ms, 16 connections, JobTimeout 10 s, RescueStuckJobsAfter 15 s",
		variant{
			workers: 500, connections: 16,
			timeout: 10 * time.Second,
			config: river.Config{
				FetchCooldown: 10 * time.Millisecond, FetchPollInterval: 50 * time.Millisecond,
				RescueStuckJobsAfter: 15 * time.Second,
			},
		}),
}

// variant has the settings that differ from the defaults, and the longest time for a job.
type variant struct {
	workers     int
	connections int32
	timeout     time.Duration
	config      river.Config
}

func info(name, settings string, v variant) contender.Info {
	return contender.Info{
		Name:     name,
		Way:      "A scheduled job per order in a table of PostgreSQL, which clients poll.",
		Source:   "https://riverqueue.com/docs/scheduled-jobs",
		Settings: settings,
		Lease:    v.timeout,
		Ahead:    6 * time.Second, // the interval of the scheduler, and some time
		New:      func(ctx context.Context, env contender.Env) (contender.Contender, error) { return newJobs(ctx, env, v) },
	}
}

// jobs is the contender.
type jobs struct {
	env    contender.Env
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
}

func newJobs(ctx context.Context, env contender.Env, v variant) (*jobs, error) {
	poolConfig, err := pgxpool.ParseConfig(env.DatabaseURL)
	if err != nil {
		return nil, err
	}
	if v.connections > 0 {
		poolConfig.MaxConns = v.connections
	}
	pool, err := pgxpool.NewWithConfig(ctx, poolConfig)
	if err != nil {
		return nil, err
	}
	config := v.config
	config.JobTimeout = v.timeout
	config.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: v.workers}}
	config.Workers = river.NewWorkers()
	config.Logger = slog.New(warnings{env.Log.Handler()})
	river.AddWorker(config.Workers, &worker{cancel: env.Cancel})
	client, err := river.NewClient(riverpgxv5.New(pool), &config)
	if err != nil {
		pool.Close()
		return nil, err
	}
	return &jobs{env: env, pool: pool, client: client}, nil
}

// Clean creates River's tables, and empties them.
func (j *jobs) Clean(ctx context.Context) error {
	config := &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)}
	migrator, err := rivermigrate.New(riverpgxv5.New(j.pool), config)
	if err != nil {
		return err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return fmt.Errorf("create River's tables: %w", err)
	}
	// Without the row of the last leader, the next client becomes the leader at once.
	_, err = j.pool.Exec(ctx, "TRUNCATE river_job, river_leader")
	return err
}

// Schedule inserts a job for each order with COPY. An order with a new due time gets a second job.
func (j *jobs) Schedule(ctx context.Context, orders []contender.Order) error {
	_, err := j.client.InsertManyFast(ctx, params(orders))
	return err
}

// Place inserts the jobs in the transaction that places the orders:
// https://riverqueue.com/docs/transactional-enqueueing.
func (j *jobs) Place(ctx context.Context, orders []contender.Order) error {
	return j.env.Place(ctx, orders, func(ctx context.Context, tx pgx.Tx) error {
		_, err := j.client.InsertManyFastTx(ctx, tx, params(orders))
		return err
	})
}

func params(orders []contender.Order) (all []river.InsertManyParams) {
	for _, order := range orders {
		all = append(all, river.InsertManyParams{
			Args: timeout{OrderID: order.ID}, InsertOpts: &river.InsertOpts{ScheduledAt: order.Due},
		})
	}
	return all
}

// stopTimeout limits how long Run waits for the client to stop. While PostgreSQL does not answer, the client tries for
// minutes to record the jobs that are done.
const stopTimeout = 900 * time.Millisecond

// Run runs the client. The client itself survives failures of PostgreSQL, once it has started.
func (j *jobs) Run(ctx context.Context, ready func()) error {
	contender.Repeat(ctx, j.env.Log, func(ctx context.Context) error {
		earlier, err := j.leaderUntil(ctx)
		if err != nil {
			return err
		}
		if err := j.client.Start(ctx); err != nil {
			return err
		}
		if j.awaitLeader(ctx, earlier) {
			ready()
		}
		<-ctx.Done()
		select {
		case <-j.client.Stopped():
		case <-time.After(stopTimeout):
		}
		return nil
	})
	return nil
}

// leaderUntil returns when the leader's row expires. Without a leader that is a time in the past.
func (j *jobs) leaderUntil(ctx context.Context) (until time.Time, err error) {
	const query = "SELECT coalesce(max(expires_at), 'epoch') FROM river_leader"
	err = j.pool.QueryRow(ctx, query).Scan(&until)
	return until, err
}

// awaitLeader waits until the leader's row expires later than a time that was read before, and reports whether it does.
// Without a leader no scheduled job becomes available. The row of a killed leader stays until it expires. Only a live
// leader writes a later time, when it is elected and then every 5 seconds.
func (j *jobs) awaitLeader(ctx context.Context, earlier time.Time) bool {
	for ctx.Err() == nil {
		if until, err := j.leaderUntil(ctx); err == nil && until.After(earlier) {
			return true
		}
		contender.Sleep(ctx, 50*time.Millisecond)
	}
	return false
}

// timeout is a job's arguments.
type timeout struct {
	OrderID string `json:"order_id"`
}

// Kind returns the name of this kind of job.
func (timeout) Kind() string { return "order_timeout" }

// worker cancels the order of a job.
type worker struct {
	river.WorkerDefaults[timeout]
	cancel func(ctx context.Context, ids ...string) ([]contender.Order, error)
}

// Work cancels the order. An early order is snoozed, which River does not count as an attempt. If Work returns another
// error, River retries the job.
func (w *worker) Work(ctx context.Context, job *river.Job[timeout]) error {
	early, err := w.cancel(ctx, job.Args.OrderID)
	if err != nil {
		return err
	}
	if len(early) > 0 {
		return river.JobSnooze(early[0].Left())
	}
	return nil
}

// warnings drops messages below the level of warnings, as River's default logger does.
type warnings struct{ slog.Handler }

// Enabled reports whether the level is at least that of a warning.
func (w warnings) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && w.Handler.Enabled(ctx, level)
}
