package payment

import (
	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/timeout"
	"example.com/shop/internal/trace"
	"example.com/shop/payments/internal/check"
)

// tasks has the components that fill the queue of one kind of task.
type tasks struct {
	name      string
	queue     *delay.Queue
	outbox    *delay.Outbox
	publisher *delay.Publisher
	relay     *delay.Relay
}

func newTasks(b *app.Base, kind string) (*tasks, error) {
	queue, err := delay.NewQueue(b.Redis, kind, b.QueueShards)
	if err != nil {
		return nil, err
	}
	outbox := delay.NewOutbox(b.Pool, kind)
	return &tasks{
		kind, queue, outbox, delay.NewPublisher(queue, outbox, b.Log, b.Metrics),
		delay.NewRelay(queue, outbox, b.Log, b.Metrics),
	}, nil
}

// kind returns the kind with the components that empty the queue: a worker of small batches, because each task calls
// the provider, and a reconciler. The tasks check the rows.
func (t *tasks) kind(b *app.Base, rows timeout.Rows, tracer *trace.Tracer) (*app.Kind, error) {
	table := timeout.NewTable(b.DB, t.name, rows, b.Log)
	traced := tracer.Timeouts(t.name, table)
	worker := delay.NewWorker(t.queue, traced.Handle, delay.WorkerConfig{Batch: check.BatchSize}, b.Log, b.Metrics)
	reconciler, err := reconcile.New(b.Pool, t.name, traced, t.queue, b.Reconcile, b.Log, b.Metrics)
	if err != nil {
		return nil, err
	}
	return &app.Kind{
		Name: t.name, Queue: t.queue, Outbox: t.outbox, Publisher: t.publisher, Relay: t.relay,
		Rows: rows, Table: table, Worker: worker, Reconciler: reconciler,
	}, nil
}
