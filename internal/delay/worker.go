package delay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// Handler does the work of a batch and gives one outcome per task, in the same order. After an error (or a
// panic) the worker halves the batch until the culprit stands alone, and that one task fails; tasks of the batch
// that were done are handled again. So an error is for what a task can be guilty of; where the
// world is at fault, a database that is down, answer [RetryIn] for every task.
//
// The context ends before the lease does, and a little after the worker is told to stop.
type Handler func(ctx context.Context, tasks []Task) ([]Outcome, error)

// WorkerConfig tunes a worker; zero fields get the defaults.
type WorkerConfig struct {
	Loops       int           // claim loops per shard: 2
	Batch       int           // the most tasks in one claim, up to 1,000: 500
	Lease       time.Duration // how late a task may be whose worker was killed, at most a day: 10 s
	MaxIdle     time.Duration // the longest sleep, so the cost of a lost wake-up hint: 5 s
	Drain       time.Duration // what a handler gets to finish once the worker must stop: 3 s
	MaxAttempts int           // failures until a task is a dead letter: 10
	BackoffMin  time.Duration // wait after the first failure, doubled by each further one: 1 s
	BackoffMax  time.Duration // 5 min
}

func (c WorkerConfig) withDefaults() WorkerConfig {
	c.Loops = cmp.Or(c.Loops, 2)
	c.Batch = min(cmp.Or(c.Batch, 500), chunk)
	c.Lease = min(cmp.Or(c.Lease, 10*time.Second), maxLease)
	c.MaxIdle = cmp.Or(c.MaxIdle, 5*time.Second)
	c.Drain = cmp.Or(c.Drain, 3*time.Second)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 10)
	c.BackoffMin = cmp.Or(c.BackoffMin, time.Second)
	c.BackoffMax = cmp.Or(c.BackoffMax, 5*time.Minute)
	return c
}

// Worker claims due tasks and has a handler do them. Run as many as needed, in as many processes.
type Worker struct {
	queue   *Queue
	handle  Handler
	cfg     WorkerConfig
	log     *slog.Logger
	metrics workerMetrics
	wake    []chan struct{} // one per shard; a hint more than the one waiting says nothing new
}

// NewWorker returns a worker that [Worker.Run] starts.
func NewWorker(q *Queue, h Handler, cfg WorkerConfig, log *slog.Logger, reg prometheus.Registerer) *Worker {
	w := &Worker{
		queue: q, handle: h, cfg: cfg.withDefaults(), log: log.With("kind", q.kind),
		metrics: newWorkerMetrics(reg, q.kind),
		wake:    make([]chan struct{}, len(q.shards)),
	}
	for i := range w.wake {
		w.wake[i] = make(chan struct{}, 1)
	}
	return w
}

// Run works until ctx ends, then finishes or hands back what it has claimed and returns nil.
func (w *Worker) Run(ctx context.Context) error {
	var loops errgroup.Group
	loops.Go(func() error { return w.listen(ctx) })
	for shard := range w.queue.shards {
		for range w.cfg.Loops {
			loops.Go(func() error { return w.loop(ctx, shard) })
		}
	}
	return loops.Wait()
}

// loop claims and handles one shard's batches. It does not poll: it sleeps until the next task is due,
// and earlier if it is hinted that a new task became the next.
func (w *Worker) loop(ctx context.Context, shard int) error {
	failing := false
	for ctx.Err() == nil {
		n, wait, err := w.RunOnce(ctx, shard)
		if failed := err != nil && ctx.Err() == nil; failed != failing {
			failing = failed
			w.reportHealth(err)
		}
		switch {
		case err != nil:
			w.sleep(ctx, shard, jitter(time.Second))
		case n == w.cfg.Batch:
			w.hint(shard) // more than one loop can take at once: have a sleeping one help
		default:
			w.sleep(ctx, shard, wait)
		}
	}
	return nil
}

// reportHealth logs a change, not each of the attempts between.
func (w *Worker) reportHealth(err error) {
	if err != nil {
		w.log.Warn("worker cannot reach its queue, keeps trying", "error", err)
		return
	}
	w.log.Info("worker reaches its queue again")
}

func (w *Worker) sleep(ctx context.Context, shard int, wait time.Duration) {
	timer := time.NewTimer(min(wait, w.cfg.MaxIdle))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-w.wake[shard]:
	}
}

func (w *Worker) hint(shard int) {
	select {
	case w.wake[shard] <- struct{}{}:
	default:
	}
}

// listen turns published hints into wake-ups. While Redis is away the client subscribes again by itself;
// whenever it has, every shard is looked at, for the hints that no one heard. A hint that is lost on
// the way costs a task at most MaxIdle.
func (w *Worker) listen(ctx context.Context) error {
	sub := w.queue.rdb.Subscribe(ctx, w.queue.channel())
	defer sub.Close()
	messages := sub.ChannelWithSubscriptions()
	for {
		select {
		case <-ctx.Done():
			return nil
		case message := <-messages:
			w.hear(message)
		}
	}
}

// hear wakes a loop of the shard that a hint names, or after a new subscription one of each shard.
func (w *Worker) hear(message any) {
	hint, isHint := message.(*redis.Message)
	for i, shard := range w.queue.shards {
		if !isHint || hint.Payload == shard.number {
			w.hint(i)
		}
	}
}

// RunOnce claims one batch of a shard, has it handled and settles it. It returns how many tasks it
// claimed and how long nothing more will be due, as far as it knows: MaxIdle if there is nothing.
func (w *Worker) RunOnce(ctx context.Context, shard int) (n int, wait time.Duration, err error) {
	batch, err := w.queue.Claim(ctx, shard, w.cfg.Batch, w.cfg.Lease)
	if err != nil {
		return 0, 0, err
	}
	if batch.Next < 0 {
		batch.Next = w.cfg.MaxIdle
	}
	next := time.Now().Add(batch.Next)
	n = len(batch.Tasks)
	if n == 0 {
		return 0, batch.Next, nil
	}
	w.metrics.batch.Observe(float64(n))
	soonest, err := w.settle(ctx, batch, w.outcomesInTime(ctx, batch.Tasks))
	return n, max(min(time.Until(next), soonest), 0), err
}

// outcomesInTime gives the handler less than the lease, so that what it did is settled while the lease
// still holds, and once ctx has ended what is left of the drain.
func (w *Worker) outcomesInTime(ctx context.Context, tasks []Task) []Outcome {
	handling, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.Lease*4/5)
	defer cancel()
	stopped := context.AfterFunc(ctx, func() { time.AfterFunc(w.cfg.Drain, cancel) })
	defer stopped()

	started := time.Now()
	defer func() { w.metrics.handling.Observe(time.Since(started).Seconds()) }()
	return w.outcomes(ctx, handling, tasks)
}

// outcomes has tasks handled, in halves where the whole cannot be.
func (w *Worker) outcomes(stop, ctx context.Context, tasks []Task) []Outcome {
	outcomes, err := w.call(ctx, tasks)
	switch {
	case err == nil:
		return outcomes
	case ctx.Err() != nil && stop.Err() != nil:
		return all(tasks, RetryIn(0)) // the worker stops: handed back, no one's fault
	case ctx.Err() != nil:
		// Too slow for the lease. Who of the batch is to blame is unknown; the backoff's jitter
		// parts them.
		return all(tasks, Fail(fmt.Errorf("not handled within %v: %w", w.cfg.Lease*4/5, err)))
	case len(tasks) == 1:
		return all(tasks, Fail(err))
	}
	half := len(tasks) / 2
	return append(w.outcomes(stop, ctx, tasks[:half]), w.outcomes(stop, ctx, tasks[half:])...)
}

func all(tasks []Task, o Outcome) []Outcome {
	outcomes := make([]Outcome, len(tasks))
	for i := range outcomes {
		outcomes[i] = o
	}
	return outcomes
}

// call runs the handler once and turns a panic or a wrong number of outcomes into an error.
func (w *Worker) call(ctx context.Context, tasks []Task) (outcomes []Outcome, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	defer func() {
		if p := recover(); p != nil {
			w.log.Error("handler panicked", "panic", p, "stack", string(debug.Stack()))
			err = fmt.Errorf("handler panicked: %v", p)
		}
	}()
	outcomes, err = w.handle(ctx, tasks)
	if err == nil && len(outcomes) != len(tasks) {
		return nil, fmt.Errorf("handler gave %d outcomes for %d tasks", len(outcomes), len(tasks))
	}
	return outcomes, err
}

// logged is how many tasks of a batch that failed have a line of the log each.
const logged = 5

// settle tells the queue what became of a batch and returns the shortest wait it asked for. If Redis
// cannot be told, the leases run out and the tasks are delivered again.
func (w *Worker) settle(ctx context.Context, b Batch, outcomes []Outcome) (soonest time.Duration, err error) {
	// Settling outlives ctx: the work is done, and a task that is not acked is done twice.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()

	var done []string
	var again []Requeue
	var dead []Burial
	failed := 0 // and tried again
	soonest = w.cfg.MaxIdle
	for i, o := range outcomes {
		task := b.Tasks[i]
		switch {
		case o.retry:
			again = append(again, Requeue{ID: task.ID, In: o.in})
			soonest = min(soonest, o.in)
		case o.err == nil:
			done = append(done, task.ID)
		case task.Attempts+1 >= w.cfg.MaxAttempts:
			dead = append(dead, Burial{ID: task.ID, Err: o.err.Error()})
			if len(dead) <= logged {
				w.log.Error("task is a dead letter now", "task", task.ID, "attempts", task.Attempts+1, "error", o.err)
			}
		default:
			wait := w.backoff(task.Attempts)
			again = append(again, Requeue{ID: task.ID, In: wait, Err: o.err.Error()})
			soonest = min(soonest, wait)
			if failed++; failed <= logged {
				w.log.Warn("task failed, is tried again", "task", task.ID, "attempts", task.Attempts+1, "in", wait, "error", o.err)
			}
		}
	}
	if failed > logged || len(dead) > logged {
		w.log.Warn("more tasks of the batch failed", "tried_again", max(failed-logged, 0), "dead", max(len(dead)-logged, 0))
	}

	var errs []error
	count := func(outcome string, wanted, held int, err error) {
		errs = append(errs, err)
		w.metrics.settled.WithLabelValues(outcome).Add(float64(held))
		if lost := wanted - held; err == nil && lost > 0 {
			w.metrics.lost.Add(float64(lost))
			w.log.Warn("leases ran out before their tasks were settled; they are delivered again", "outcome", outcome, "tasks", lost)
		}
	}
	if len(done) > 0 {
		held, err := w.queue.Ack(ctx, b, done...)
		count("done", len(done), held, err)
	}
	if len(again) > 0 {
		held, err := w.queue.Retry(ctx, b, again...)
		count("retry", len(again), held, err)
	}
	if len(dead) > 0 {
		held, err := w.queue.Bury(ctx, b, dead...)
		count("bury", len(dead), held, err)
	}
	return soonest, errors.Join(errs...)
}

// backoff is the wait after a failure, given the failures before it.
func (w *Worker) backoff(attempts int) time.Duration {
	wait := w.cfg.BackoffMin << min(attempts, 30)
	if wait <= 0 || wait > w.cfg.BackoffMax {
		wait = w.cfg.BackoffMax
	}
	return jitter(wait)
}

// jitter spreads what failed together over half to one and a half times d.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d)
}
