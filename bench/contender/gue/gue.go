// Package gue times out orders with gue, a job queue on PostgreSQL: https://github.com/vgarvardt/gue#readme.
//
// An order is a job whose RunAt is the time when the order is due. Each worker of a pool takes one job at a time, and
// waits for the interval of polling when no job is due. The job is in the transaction of the order, because EnqueueTx
// promises that it is "committed or rolled back atomically": https://pkg.go.dev/github.com/vgarvardt/gue/v5.
//
// A worker holds a transaction, in which the row of the job is locked, until the job is deleted. When its process is
// killed, PostgreSQL rolls the transaction back, and the job is free at once for other workers. So nothing is lost,
// and a cancellation whose process was killed after its commit is repeated. While the process lives, the job stays
// locked.
package gue

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/vgarvardt/gue/v5"
	"github.com/vgarvardt/gue/v5/adapter"
	"github.com/vgarvardt/gue/v5/adapter/pgxv5"

	"example.com/shop/bench/contender"
)

// Contenders has the two variants.
var Contenders = []contender.Info{
	info("gue, as shipped", "2 workers, as in the example of the documentation; the default: a poll every 5 s",
		variant{workers: 2}),
	info("gue, tuned",
		"16 workers on 16 connections, which poll every 50 ms; RunAtPollStrategy, whose order is that of the index",
		variant{
			workers: 16,
			options: []gue.WorkerPoolOption{
				gue.WithPoolPollInterval(50 * time.Millisecond), gue.WithPoolPollStrategy(gue.RunAtPollStrategy),
			},
		}),
}

// variant has the number of workers, and the settings that differ from the defaults.
type variant struct {
	workers int
	options []gue.WorkerPoolOption
}

func info(name, settings string, v variant) contender.Info {
	return contender.Info{
		Name:     name,
		Way:      "A job with a time per order in a table of PostgreSQL, which workers poll.",
		Source:   "https://github.com/vgarvardt/gue#readme",
		Settings: settings,
		New: func(ctx context.Context, env contender.Env) (contender.Contender, error) {
			config, err := pgxpool.ParseConfig(env.DatabaseURL)
			if err != nil {
				return nil, err
			}
			config.MaxConns = max(config.MaxConns, int32(v.workers)) // a worker holds a connection while it works
			pool, err := pgxpool.NewWithConfig(ctx, config)
			if err != nil {
				return nil, err
			}
			client, err := gue.NewClient(pgxv5.NewConnPool(pool))
			return &jobs{env: env, variant: v, pool: pool, client: client}, err
		},
	}
}

const jobType = "time out"

// jobs is the contender.
type jobs struct {
	env contender.Env
	variant
	pool   *pgxpool.Pool
	client *gue.Client
}

// Clean creates gue's table with the file of SQL in gue's module, and empties it.
func (j *jobs) Clean(ctx context.Context) error {
	dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/vgarvardt/gue/v5").Output()
	if err != nil {
		return fmt.Errorf("find gue's module: %w", err)
	}
	schema, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "migrations", "schema.sql"))
	if err != nil {
		return err
	}
	_, err = j.pool.Exec(ctx, string(schema)+"; TRUNCATE gue_jobs")
	return err
}

// Schedule enqueues a job for each order. An order with a new due time gets a second job.
func (j *jobs) Schedule(ctx context.Context, orders []contender.Order) error {
	return pgx.BeginFunc(ctx, j.pool, func(tx pgx.Tx) error { return j.enqueue(ctx, pgxv5.NewTx(tx), orders) })
}

// Place enqueues the jobs in the transaction that places the orders.
func (j *jobs) Place(ctx context.Context, orders []contender.Order) error {
	return j.env.Place(ctx, orders, func(ctx context.Context, tx pgx.Tx) error {
		return j.enqueue(ctx, pgxv5.NewTx(tx), orders)
	})
}

func (j *jobs) enqueue(ctx context.Context, tx adapter.Tx, orders []contender.Order) error {
	for some := range slices.Chunk(orders, contender.Batch) {
		var batch []*gue.Job
		for _, order := range some {
			batch = append(batch, &gue.Job{Type: jobType, RunAt: order.Due, Args: []byte(order.ID)})
		}
		if err := j.client.EnqueueBatchTx(ctx, batch, tx); err != nil {
			return err
		}
	}
	return nil
}

// Run runs a pool of workers, which itself survives failures of PostgreSQL.
func (j *jobs) Run(ctx context.Context, ready func()) error {
	workers, err := gue.NewWorkerPool(j.client, gue.WorkMap{jobType: j.cancel}, j.workers, j.options...)
	if err != nil {
		return err
	}
	ready()
	return workers.Run(ctx)
}

// cancel cancels the order of a job. If it returns an error, gue tries the job again after a second or more.
func (j *jobs) cancel(ctx context.Context, job *gue.Job) error {
	early, err := j.env.Cancel(ctx, string(job.Args))
	if err == nil && len(early) > 0 {
		return gue.ErrRescheduleJobAt(early[0].Due, "the order is due later")
	}
	return err
}
