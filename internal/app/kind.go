package app

import (
	"context"
	"errors"
	"time"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/timeout"
)

// Kind has the components of one kind of task, for instance of the tasks that cancel orders: the queue; the outbox,
// publisher and relay, which fill the queue; the worker, which empties the queue into the table whose rows the tasks
// time out; and the reconciler, which compares the queue with the table.
type Kind struct {
	Name       string
	Queue      *delay.Queue
	Outbox     *delay.Outbox
	Publisher  *delay.Publisher
	Relay      *delay.Relay
	Rows       timeout.Rows // describe the Table
	Table      *timeout.Table
	Worker     *delay.Worker
	Reconciler *reconcile.Reconciler
}

// NewKind calls the constructors of all components of a kind of task that times out rows, which are known before the
// publisher. Its error says which option or name is wrong.
func NewKind(b *Base, name string, rows timeout.Rows, cfg delay.WorkerConfig) (*Kind, error) {
	queue, err := delay.NewQueue(b.Redis, name, b.QueueShards)
	if err != nil {
		return nil, err
	}
	outbox := delay.NewOutbox(b.Pool, name)
	publisher := delay.NewPublisher(queue, outbox, b.Log, b.Metrics)
	relay := delay.NewRelay(queue, outbox, b.Log, b.Metrics)
	table := timeout.NewTable(b.DB, name, rows, b.Log)
	worker := delay.NewWorker(queue, table.Handle, cfg, b.Log, b.Metrics)
	reconciler, err := reconcile.New(b.Pool, name, table, queue, b.Reconcile, b.Log, b.Metrics)
	if err != nil {
		return nil, err
	}
	return &Kind{name, queue, outbox, publisher, relay, rows, table, worker, reconciler}, nil
}

// components returns the components of the kind, without the reconciler, which waits for those of other kinds.
func (k *Kind) components() []Component {
	return []Component{
		{Run: k.Publisher.Run}, // each role may publish tasks
		{Role: Relay, Run: k.Relay.Run},
		{Role: Worker, Run: k.Worker.Run},
	}
}

// Kinds holds all kinds of task of a process. Its methods combine the results of all kinds.
type Kinds []*Kind

func (all Kinds) runReconcilers(ctx context.Context) error {
	reconcilers := make([]*reconcile.Reconciler, len(all))
	for i, k := range all {
		reconcilers[i] = k.Reconciler
	}
	return reconcile.Run(ctx, reconcilers...)
}

// Sweep sweeps the tables of all kinds, and returns the sum of the reports. If the sweep of a kind cannot start, for
// example because another process sweeps the same table, Sweep sweeps the others before it returns the error. It
// returns [reconcile.ErrSweeping] only if there is no other error.
func (all Kinds) Sweep(ctx context.Context) (sum reconcile.Report, err error) {
	reports := make([]reconcile.Report, len(all))
	for i, k := range all {
		report, sweepErr := k.Reconciler.Sweep(ctx)
		reports[i] = report
		if err == nil || errors.Is(err, reconcile.ErrSweeping) && sweepErr != nil {
			err = sweepErr
		}
	}
	return reconcile.Sum(reports...), err
}

// Bound returns how long past its deadline a row of any kind may be pending.
func (all Kinds) Bound() (longest time.Duration) {
	for _, k := range all {
		longest = max(longest, k.Reconciler.Bound())
	}
	return longest
}
