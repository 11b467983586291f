package payment

import (
	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/timeout"
	"example.com/shop/internal/trace"
	"example.com/shop/payments/internal/check"
)

// newKind returns a kind of task that checks rows. Its worker has small batches, because each task calls the provider.
func newKind(b *app.Base, name string, rows timeout.Rows, tracer *trace.Tracer) (*app.Kind, error) {
	queue, err := delay.NewQueue(b.Redis, name, b.QueueShards)
	if err != nil {
		return nil, err
	}
	outbox := delay.NewOutbox(b.Pool, name)
	publisher := delay.NewPublisher(queue, outbox, b.Log, b.Metrics)
	relay := delay.NewRelay(queue, outbox, b.Log, b.Metrics)
	table := timeout.NewTable(b.DB, name, rows, b.Log)
	traced := tracer.Timeouts(name, table)
	worker := delay.NewWorker(queue, traced.Handle, delay.WorkerConfig{Batch: check.BatchSize}, b.Log, b.Metrics)
	reconciler, err := reconcile.New(b.Pool, name, traced, queue, b.Reconcile, b.Log, b.Metrics)
	if err != nil {
		return nil, err
	}
	return &app.Kind{
		Name: name, Queue: queue, Outbox: outbox, Publisher: publisher, Relay: relay,
		Rows: rows, Table: table, Worker: worker, Reconciler: reconciler,
	}, nil
}
