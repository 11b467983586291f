// Package dbos times out orders with DBOS Transact, durable workflows on PostgreSQL:
// https://docs.dbos.dev/golang/programming-guide.
//
// An order is a workflow in a queue, whose id is that of the order. As shipped, the queue starts the workflow at once,
// and the workflow sleeps until the order is due:
// https://docs.dbos.dev/golang/tutorials/workflow-tutorial#durable-sleep. The sleep is durable, because its end is a
// row, and it follows the clock of the process. Tuned, the queue delays the workflow, and the process polls the queue
// more often: https://docs.dbos.dev/golang/tutorials/queue-tutorial. The cancellation is a step. A step whose process
// is killed between its transaction and its checkpoint runs again.
//
// The workflow is enqueued in the transaction of the order with dbos.enqueue_workflow, a function in the database that
// is for this: https://docs.dbos.dev/explanations/system-tables and
// https://www.dbos.dev/blog/running-durable-workflows-from-postgres-udfs. In the other way that DBOS shows, the order
// is placed by the first step of its workflow: https://docs.dbos.dev/golang/examples/widget-store.
//
// A process recovers the pending workflows of its executor id when it starts. Without the commercial Conductor nobody
// else does: https://docs.dbos.dev/production/workflow-recovery. So the workflows that sleep in a killed process wait
// until that process is back. A workflow that the queue still delays belongs to no process.
package dbos

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"github.com/jackc/pgx/v5"

	"example.com/shop/bench/contender"
)

// Contenders has the two variants.
var Contenders = []contender.Info{
	info("DBOS, as shipped", "a workflow that sleeps; the queue is polled every second", variant{poll: time.Second}),
	info("DBOS, tuned",
		"a delayed workflow; the queue is polled every 20 ms; the release of delayed workflows, every second, has no "+
			"public setting",
		variant{poll: 20 * time.Millisecond, delay: true}),
}

// variant has the settings that differ.
type variant struct {
	poll  time.Duration // between two looks at the queue
	delay bool          // the queue delays the workflow, which does not sleep
}

func info(name, settings string, v variant) contender.Info {
	var cannot map[string]string
	if !v.delay {
		const reason = "a workflow that sleeps cannot be moved; it would be cancelled and started anew"
		cannot = map[string]string{contender.Reschedule: reason}
	}
	return contender.Info{
		Name:     name,
		Way:      "A durable workflow per order on PostgreSQL, which waits until the order is due.",
		Source:   "https://docs.dbos.dev/golang/tutorials/workflow-tutorial",
		Settings: settings,
		Cannot:   cannot,
		Ahead:    2 * time.Second, // the interval of the queue, and some time
		New: func(_ context.Context, env contender.Env) (contender.Contender, error) {
			return &workflows{env: env, variant: v}, nil
		},
	}
}

// The names that a process that places orders shares with one that cancels them.
const (
	app      = "shop"
	queue    = "timeouts"
	workflow = "time out"
)

// workflows is the contender.
type workflows struct {
	env contender.Env
	variant

	mu     sync.Mutex
	client dbos.Client // nil before the first Schedule
}

// timeout is the input of a workflow.
type timeout struct {
	OrderID string
	Due     time.Time
}

// open returns a context that runs workflows. It creates the tables of DBOS.
func (w *workflows) open(ctx context.Context) (dbos.Context, error) {
	d, err := dbos.NewContext(ctx, dbos.Config{
		AppName: app, ApplicationVersion: "1", ExecutorID: w.env.Process,
		DatabaseURL: w.env.DatabaseURL, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	dbos.RegisterWorkflow(d, w.timeOut, dbos.WithWorkflowName(workflow))
	_, err = dbos.RegisterQueue(d, queue, dbos.WithQueueBasePollingInterval(w.poll))
	return d, err
}

// timeOut is the workflow. A recovered workflow must take the same steps again, whatever the time is then, so it
// sleeps even if the order is due.
func (w *workflows) timeOut(ctx dbos.Context, t timeout) (bool, error) {
	sleep := !w.delay // else the queue has waited
	for {
		if sleep {
			if _, err := dbos.Sleep(ctx, max(time.Until(t.Due), 0)); err != nil {
				return false, err
			}
		}
		early, err := dbos.RunAsStep(ctx, func(ctx context.Context) ([]contender.Order, error) {
			return w.env.Cancel(ctx, t.OrderID)
		}, dbos.WithStepMaxRetries(10))
		if err != nil || len(early) == 0 {
			return err == nil, err
		}
		t.Due, sleep = early[0].Due, true
	}
}

// Clean creates the tables, and empties them.
func (w *workflows) Clean(ctx context.Context) error {
	d, err := w.open(ctx)
	if err != nil {
		return err
	}
	if err := dbos.Shutdown(d, time.Second); err != nil {
		return err
	}
	_, err = w.env.DB.ExecContext(ctx, "TRUNCATE dbos.workflow_status CASCADE")
	return err
}

// Schedule enqueues a workflow for each order, several at the same time, because there is no call for a batch. A
// workflow that the queue delays already gets a new delay.
func (w *workflows) Schedule(ctx context.Context, orders []contender.Order) error {
	client, err := w.connect(ctx)
	if err != nil {
		return err
	}
	delayed, err := w.delayed(client, orders)
	if err != nil {
		return err
	}
	return contender.Each(ctx, contender.Workers, orders, func(_ context.Context, order contender.Order) error {
		if delayed[order.ID] {
			return dbos.SetWorkflowDelay(client, order.ID, dbos.WithDelayUntil(order.Due))
		}
		options := []dbos.EnqueueOption{dbos.WithEnqueueWorkflowID(order.ID)}
		if w.delay {
			options = append(options, dbos.WithEnqueueDelay(order.Left()))
		}
		_, err := dbos.Enqueue[bool](client, queue, workflow, timeout{order.ID, order.Due}, options...)
		return err
	})
}

// connect returns the client that enqueues.
func (w *workflows) connect(ctx context.Context) (client dbos.Client, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.client == nil {
		w.client, err = dbos.NewClient(context.WithoutCancel(ctx), dbos.ClientConfig{
			AppName: app, DatabaseURL: w.env.DatabaseURL, Logger: slog.New(slog.DiscardHandler),
		})
	}
	return w.client, err
}

// delayed returns the ids of the orders whose workflows the queue delays.
func (w *workflows) delayed(client dbos.Client, orders []contender.Order) (map[string]bool, error) {
	delayed := map[string]bool{}
	if !w.delay {
		return delayed, nil
	}
	ids := make([]string, len(orders))
	for i, order := range orders {
		ids[i] = order.ID
	}
	found, err := dbos.ListWorkflows(client, dbos.WithFilterWorkflowIDs(ids...),
		dbos.WithFilterStatus(dbos.WorkflowStatusDelayed),
		dbos.WithFilterLoadInput(false), dbos.WithFilterLoadOutput(false))
	for _, f := range found {
		delayed[f.ID] = true
	}
	return delayed, err
}

// enqueueSQL enqueues a workflow for each of the ids. A workflow whose time is NULL starts at once.
const enqueueSQL = `
	SELECT count(dbos.enqueue_workflow(
		workflow_name => $1, queue_name => $2, application_name => $3,
		workflow_id => id, positional_args => ARRAY[input::json], delay_until_epoch_ms => due))
	FROM unnest($4::text[], $5::text[], $6::bigint[]) AS o (id, input, due)`

// Place enqueues the workflows in the transaction that places the orders.
func (w *workflows) Place(ctx context.Context, orders []contender.Order) error {
	var ids, inputs []string
	var dues []*int64
	for _, order := range orders {
		input, err := json.Marshal(timeout{order.ID, order.Due})
		if err != nil {
			return err
		}
		ids, inputs = append(ids, order.ID), append(inputs, string(input))
		if w.delay {
			dues = append(dues, new(order.CeilMilli()))
		} else {
			dues = append(dues, nil)
		}
	}
	return w.env.Place(ctx, orders, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, enqueueSQL, workflow, queue, app, ids, inputs, dues)
		return err
	})
}

// Run runs the workflows.
func (w *workflows) Run(ctx context.Context, ready func()) error {
	contender.Repeat(ctx, w.env.Log, func(ctx context.Context) error {
		d, err := w.open(context.WithoutCancel(ctx))
		if err != nil {
			return fmt.Errorf("open DBOS: %w", err)
		}
		if err := dbos.Launch(d); err != nil {
			return fmt.Errorf("launch DBOS: %w", err)
		}
		ready()
		<-ctx.Done()
		_ = dbos.Shutdown(d, 500*time.Millisecond) // workflows that sleep do not end
		return nil
	})
	return nil
}
