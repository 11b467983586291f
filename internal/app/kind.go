package app

import (
	"context"
	"errors"
	"slices"
	"time"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/timeout"
)

// Kind holds the components of one kind of task, for instance of the tasks that cancel orders: the queue; the outbox,
// publisher and relay, which fill the queue; the worker, which empties the queue; and the reconciler, which compares
// the queue with a table.
type Kind struct {
	Name       string
	Queue      *delay.Queue
	Outbox     *delay.Outbox
	Publisher  *delay.Publisher
	Worker     *delay.Worker         // set by Handle
	Reconciler *reconcile.Reconciler // set by Handle

	process  *Process
	table    *timeout.Table
	schedule string // the statement of [Kind.Schedule]
}

// NewKind adds a kind of task with the components that fill its queue. The part gives the publisher to its service,
// and then calls [Kind.Handle]. NewKind returns an error only if the name is wrong.
func (p *Process) NewKind(name string) (*Kind, error) {
	queue, err := p.NewQueue(name)
	if err != nil {
		return nil, err
	}
	outbox := delay.NewOutbox(p.Pool, name)
	k := &Kind{
		Name: name, Queue: queue, Outbox: outbox, Publisher: delay.NewPublisher(queue, outbox, p.Log, p.Metrics), process: p,
	}
	p.Kinds = append(p.Kinds, k)
	relay := delay.NewRelay(queue, outbox, p.Log, p.Metrics)
	p.Metrics.MustRegister(delay.NewDepthCollector(queue, outbox))
	p.Add(Part{Components: []Component{
		{Run: k.Publisher.Run}, // each role may publish tasks
		{Role: Relay, Run: relay.Run},
	}})
	return k, nil
}

// Handle completes a kind whose tasks time out the given rows. The fields of worker may be zero. Handle returns an
// error only if the reconciler's options are wrong.
func (k *Kind) Handle(rows timeout.Rows, worker delay.WorkerConfig) (err error) {
	p := k.process
	var begin timeout.BeginSpan
	if p.cfg.Tracer != nil {
		begin = p.cfg.Tracer.StartTasks
	}
	k.schedule = fillIn(scheduleSQL, rows.Table, rows.Due)
	k.table = timeout.NewTable(p.DB, k.Name, rows, begin, p.Log)
	k.Worker = p.Work(k.Queue, k.table.Handle, worker)
	k.Reconciler, err = reconcile.New(p.Pool, k.Name, k.table, k.Queue, p.cfg.Reconcile, p.Log, p.Metrics)
	return err
}

// NewQueue returns the queue of a kind of task. Most parts call [Process.NewKind] instead: without an outbox and a
// reconciler, the tasks of a queue are lost when Redis loses its data.
func (p *Process) NewQueue(kind string) (*delay.Queue, error) {
	return delay.NewQueue(p.Redis, kind, p.cfg.QueueShards)
}

// Work adds a worker of a queue to the process, and returns it.
func (p *Process) Work(queue *delay.Queue, handle delay.Handler, cfg delay.WorkerConfig) *delay.Worker {
	w := delay.NewWorker(queue, handle, cfg, p.Log, p.Metrics)
	p.workers = append(p.workers, w)
	return w
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

// Depth counts the tasks of all kinds.
func (all Kinds) Depth(ctx context.Context) (sum delay.Depth, err error) {
	for _, k := range all {
		d, err := k.Queue.Depth(ctx)
		if err != nil {
			return delay.Depth{}, err
		}
		sum.Scheduled += d.Scheduled
		sum.Due += d.Due
		sum.Leased += d.Leased
		sum.Dead += d.Dead
		sum.OldestDue = max(sum.OldestDue, d.OldestDue)
	}
	return sum, nil
}

// Backlog returns the number of messages in the outboxes of all kinds, and the age of the oldest.
func (all Kinds) Backlog(ctx context.Context) (count int64, oldest time.Duration, err error) {
	for _, k := range all {
		n, age, err := k.Outbox.Backlog(ctx)
		if err != nil {
			return 0, 0, err
		}
		count += n
		oldest = max(oldest, age)
	}
	return count, oldest, nil
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

// LastSweep returns the sum of the reports of the kinds' last sweeps, or nil if some kind has had no sweep yet.
func (all Kinds) LastSweep(ctx context.Context) (*reconcile.Report, error) {
	reports := make([]reconcile.Report, len(all))
	for i, k := range all {
		last, _, err := k.Reconciler.Last(ctx)
		if last == nil || err != nil {
			return nil, err
		}
		reports[i] = *last
	}
	sum := reconcile.Sum(reports...)
	return &sum, nil
}

// Bound returns how long past its deadline a row of any kind may be pending.
func (all Kinds) Bound() (longest time.Duration) {
	for _, k := range all {
		longest = max(longest, k.Reconciler.Bound())
	}
	return longest
}

// DeadLetters returns the latest dead letters of all kinds, at most limit, the latest first.
func (all Kinds) DeadLetters(ctx context.Context, limit int) ([]delay.DeadLetter, error) {
	letters := []delay.DeadLetter{}
	for _, k := range all {
		some, err := k.Queue.DeadLetters(ctx, limit)
		if err != nil {
			return nil, err
		}
		letters = append(letters, some...)
	}
	slices.SortStableFunc(letters, func(a, b delay.DeadLetter) int { return b.BuriedAt.Compare(a.BuriedAt) })
	return letters[:min(limit, len(letters))], nil
}

// Redrive makes a dead letter of the named kind due now, and reports whether there was one.
func (all Kinds) Redrive(ctx context.Context, name, id string) (bool, error) {
	for _, k := range all {
		if k.Name == name {
			return k.Queue.Redrive(ctx, id)
		}
	}
	return false, nil
}
