// Package neoq times out orders with neoq, a job queue, on PostgreSQL:
// https://github.com/acaloiaro/neoq/wiki/Backends.
//
// An order is a job whose RunAfter is the time when the order is due. The process that enqueues a job keeps it in
// memory and looks for due jobs every second. It announces a due job with NOTIFY, and the first process that hears of
// the job runs it in a transaction, in which the row of the job is locked. A job that is done stays in the table.
//
// neoq has no call that enqueues in a transaction of the caller, so a process that is killed between the commit of an
// order and Enqueue loses the order's job. As shipped, neoq does not wait until its commits are on disk, so a crash of
// PostgreSQL can lose the last jobs, too: see WithSynchronousCommit.
//
// When a process is killed, PostgreSQL unlocks the rows of its jobs in progress. A process that starts reads the next
// 100 jobs into memory. Other jobs of the killed process run after the check for pending jobs has found them, which
// takes 100 due jobs every 60 seconds.
//
// When a process calls Shutdown, all processes stop to listen, because Shutdown announces its end on the channel of
// the queue, and each listener takes it for its own. Then only a restart helps.
package neoq

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/acaloiaro/neoq"
	"github.com/acaloiaro/neoq/backends/postgres"
	"github.com/acaloiaro/neoq/handler"
	"github.com/acaloiaro/neoq/jobs"
	"github.com/acaloiaro/neoq/logging"

	"example.com/shop/bench/contender"
)

// Contenders has the two variants.
var Contenders = []contender.Info{
	info("neoq, as shipped", "60 connections; the defaults: 50 jobs at a time, a check for pending jobs every 60 s"),
	info("neoq, tuned", "60 connections, a check for pending jobs every second, WithSynchronousCommit",
		neoq.WithPendingJobCheckInterval(time.Second), postgres.WithSynchronousCommit(true)),
}

func info(name, settings string, options ...neoq.ConfigOption) contender.Info {
	return contender.Info{
		Name:     name,
		Way:      "A job with a time per order in a table of PostgreSQL, which the process also keeps in memory.",
		Source:   "https://github.com/acaloiaro/neoq/wiki/Backends",
		Settings: settings,
		Lease:    handler.DefaultHandlerTimeout,
		Ahead:    2 * time.Second, // the interval between two looks for due jobs, and some time
		New: func(ctx context.Context, env contender.Env) (contender.Contender, error) {
			address, err := url.Parse(env.DatabaseURL)
			if err != nil {
				return nil, err
			}
			parameters := address.Query()
			parameters.Set("pool_max_conns", connections)
			address.RawQuery = parameters.Encode()
			backend, err := neoq.New(ctx, append([]neoq.ConfigOption{
				neoq.WithBackend(postgres.Backend), postgres.WithConnectionString(address.String()),
				neoq.WithLogLevel(logging.LogLevelError),
			}, options...)...)
			if err != nil {
				return nil, err
			}
			backend.SetLogger(env.Log) // the default logger writes to standard output, which has the replies
			return &queue{env: env, backend: backend}, nil
		},
	}
}

// connections is the size of the pool. Each of the 50 handlers holds a connection while it works. With the default of
// 4 connections, handlers that enqueue would all wait for another one.
const connections = "60"

const queueName = "timeouts"

// queue is the contender.
type queue struct {
	env     contender.Env
	backend neoq.Neoq
}

// Clean empties neoq's tables, which neoq.New has created.
func (q *queue) Clean(ctx context.Context) error {
	_, err := q.env.DB.ExecContext(ctx, "TRUNCATE neoq_jobs, neoq_dead_jobs")
	return err
}

// Schedule enqueues a job for each order, several at the same time, because there is no call for a batch. An order
// with a new due time gets a second job.
func (q *queue) Schedule(ctx context.Context, orders []contender.Order) error {
	return contender.Each(ctx, contender.Workers, orders, q.enqueue)
}

func (q *queue) enqueue(ctx context.Context, order contender.Order) error {
	_, err := q.backend.Enqueue(ctx, &jobs.Job{
		Queue:    queueName,
		Payload:  map[string]any{"order_id": order.ID, "due": order.Due.UnixMicro()},
		RunAfter: order.Due,
	})
	if errors.Is(err, postgres.ErrDuplicateJob) { // the queue has a job with this payload
		return nil
	}
	return err
}

// stopTimeout limits how long Run waits for jobs in progress.
const stopTimeout = 700 * time.Millisecond

// Run runs the handler of the queue. neoq itself survives failures of PostgreSQL.
func (q *queue) Run(ctx context.Context, ready func()) error {
	if err := q.backend.Start(ctx, handler.New(queueName, q.cancel)); err != nil {
		return fmt.Errorf("start neoq: %w", err)
	}
	ready()
	<-ctx.Done()
	contender.Stop(stopTimeout, func() { q.backend.Shutdown(context.WithoutCancel(ctx)) })
	return nil
}

// cancel cancels the order of a job. If it returns an error, neoq tries the job again.
func (q *queue) cancel(ctx context.Context) error {
	job, err := jobs.FromContext(ctx)
	if err != nil {
		return err
	}
	id, ok := job.Payload["order_id"].(string)
	if !ok {
		return fmt.Errorf("job %d has no order", job.ID)
	}
	early, err := q.env.Cancel(ctx, id)
	if err != nil {
		return err
	}
	return q.Schedule(ctx, early)
}
