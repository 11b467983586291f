package delay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// Handler handles a batch of tasks. It returns one outcome for each task, at the same index.
//
// After an error or a panic the worker calls the handler again with each half of the batch, and so on. A task fails if
// the handler returns an error for this task alone. So tasks of a failed batch may be handled more than once. Return an
// error only if a task can be the cause. If the cause is outside the tasks, for instance a database that does not
// answer, return [RetryIn] for every task.
//
// The context ends before the lease does. All tasks that have no outcome then fail, because any of them may have taken
// the time. If the worker must stop, the context ends at the latest when the drain time has passed. Then the tasks that
// have no outcome are due again at once, and their attempts do not count as failed.
type Handler func(ctx context.Context, tasks []Task) ([]Outcome, error)

// WorkerConfig configures a worker. Zero fields get the defaults.
type WorkerConfig struct {
	Loops       int           // claim loops for each shard: 2
	Batch       int           // the most tasks in one claim, up to 1,000: 500
	Lease       time.Duration // of one batch, at most a day; the tasks of a killed worker wait until it ends: 10 s
	MaxIdle     time.Duration // the longest sleep, and so the longest delay after a lost wake-up: 30 s, as between sweeps
	Drain       time.Duration // the time that the handler has left when the worker must stop: 3 s
	MaxAttempts int           // failed attempts that make a task a dead letter: 10
	// The wait after the first failed attempt is BackoffMin: 1 s. It doubles after each further one, up to BackoffMax:
	// 5 min. Each wait is then made shorter or longer at random, by up to half of it.
	BackoffMin time.Duration
	BackoffMax time.Duration
}

func (c WorkerConfig) withDefaults() WorkerConfig {
	c.Loops = cmp.Or(c.Loops, 2)
	c.Batch = min(cmp.Or(c.Batch, 500), chunk)
	c.Lease = min(cmp.Or(c.Lease, 10*time.Second), maxLease)
	c.MaxIdle = cmp.Or(c.MaxIdle, 30*time.Second)
	c.Drain = cmp.Or(c.Drain, 3*time.Second)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 10)
	c.BackoffMin = cmp.Or(c.BackoffMin, time.Second)
	c.BackoffMax = cmp.Or(c.BackoffMax, 5*time.Minute)
	return c
}

// Worker claims due tasks and calls a handler with them. Any number of workers may run, in any number of processes.
type Worker struct {
	queue   *Queue
	handle  Handler
	cfg     WorkerConfig
	log     *slog.Logger
	metrics workerMetrics
	watches []watch // one for each shard
}

// watch is the part of a worker that the loops of one shard share. One loop at a time watches the shard: it sleeps until
// a task is due, and claims a batch. Then the next loop watches, while this one handles the batch. So an idle shard
// costs the same few commands, however many loops it has.
type watch struct {
	turn    chan time.Time // the loop that receives the time claims then, and sends the time of the next claim
	wake    chan struct{}  // ends the sleep; buffered by one: wake-ups coalesce
	failing atomic.Bool    // the last claim, or the settling of its batch, failed
}

// NewWorker returns a worker that [Worker.Run] starts.
func NewWorker(q *Queue, h Handler, cfg WorkerConfig, log *slog.Logger, reg prometheus.Registerer) *Worker {
	w := &Worker{
		queue: q, handle: h, cfg: cfg.withDefaults(), log: log.With("kind", q.kind),
		metrics: newWorkerMetrics(reg, q.kind),
		watches: make([]watch, len(q.shards)),
	}
	for i := range w.watches {
		w.watches[i].turn, w.watches[i].wake = make(chan time.Time, 1), make(chan struct{}, 1)
		w.watches[i].turn <- time.Now()
	}
	return w
}

// Run works until ctx ends. Then it finishes the tasks that it has claimed, or returns them to the queue, and returns
// nil.
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

// loop claims and handles batches of one shard.
func (w *Worker) loop(ctx context.Context, shard int) error {
	for ctx.Err() == nil {
		batch, err := w.next(ctx, shard)
		if err == nil {
			err = w.finish(ctx, batch)
		}
		if failed := err != nil; ctx.Err() == nil && w.watches[shard].failing.Swap(failed) != failed {
			w.reportHealth(err)
		}
	}
	return nil
}

// reportHealth logs that the queue became unusable (err is not nil) or usable again. Failures in between are not
// logged.
func (w *Worker) reportHealth(err error) {
	if err != nil {
		w.log.Warn("worker cannot use its queue; it keeps trying", "error", err)
		return
	}
	w.log.Info("worker can use its queue again")
}

// next waits for its turn to watch the shard. Then it sleeps until a task is due or a lease ends, or until a wake-up says
// that another task is due earlier, and claims a batch. The batch may be empty.
func (w *Worker) next(ctx context.Context, shard int) (batch Batch, err error) {
	watch := &w.watches[shard]
	var at time.Time
	select {
	case <-ctx.Done():
		return Batch{}, ctx.Err()
	case at = <-watch.turn:
	}
	defer func() { watch.turn <- at }()
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return Batch{}, ctx.Err()
	case <-timer.C:
	case <-watch.wake:
	}
	batch, wait, err := w.claim(ctx, shard)
	at = time.Now().Add(wait)
	return batch, err
}

// claim claims a batch of a shard. It returns the time to wait before the next claim.
func (w *Worker) claim(ctx context.Context, shard int) (batch Batch, wait time.Duration, err error) {
	batch, err = w.queue.Claim(ctx, shard, w.cfg.Batch, w.cfg.Lease)
	switch {
	case err != nil:
		return Batch{}, jitter(time.Second), err
	case batch.Next < 0:
		return batch, w.cfg.MaxIdle, nil
	default:
		return batch, min(batch.Next, w.cfg.MaxIdle), nil
	}
}

func (w *Worker) wakeUp(shard int) {
	select {
	case w.watches[shard].wake <- struct{}{}:
	default:
	}
}

// listen receives wake-ups from Redis. After an outage the Redis client subscribes again by itself. A lost wake-up
// delays a task by at most MaxIdle.
func (w *Worker) listen(ctx context.Context) error {
	sub := w.queue.rdb.Subscribe(ctx, w.queue.channel())
	defer sub.Close()
	// The client's health check is off. It sends PING, but does not wait for the answer. TCP keep-alive detects a dead
	// connection without a command.
	messages := sub.ChannelWithSubscriptions(redis.WithChannelHealthCheckInterval(0))
	for {
		select {
		case <-ctx.Done():
			return nil
		case message := <-messages:
			w.receive(message)
		}
	}
}

// receive wakes a loop of the shard that a wake-up names. A message that is not a wake-up confirms a new subscription.
// Then receive wakes a loop of each shard, because wake-ups may have been lost before the subscription.
func (w *Worker) receive(message any) {
	published, isWakeUp := message.(*redis.Message)
	for i, shard := range w.queue.shards {
		if !isWakeUp || published.Payload == shard.number {
			w.wakeUp(i)
		}
	}
}

// RunOnce claims one batch of a shard, calls the handler and settles the batch. It returns the number of claimed tasks.
func (w *Worker) RunOnce(ctx context.Context, shard int) (n int, err error) {
	batch, _, err := w.claim(ctx, shard)
	if err != nil {
		return 0, err
	}
	return len(batch.Tasks), w.finish(ctx, batch)
}

// finish calls the handler with the tasks of a batch and settles them.
func (w *Worker) finish(ctx context.Context, batch Batch) error {
	if len(batch.Tasks) == 0 {
		return nil
	}
	w.metrics.batch.Observe(float64(len(batch.Tasks)))
	return w.settle(ctx, batch, w.outcomesWithTimeout(ctx, batch.Tasks))
}

// outcomesWithTimeout gives the handler four fifths of the lease, so that the worker can settle the batch while it
// holds the lease. When ctx ends, the handler has at most the drain time left.
func (w *Worker) outcomesWithTimeout(ctx context.Context, tasks []Task) []Outcome {
	handling, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.cfg.Lease*4/5)
	defer cancel()
	unregister := context.AfterFunc(ctx, func() { time.AfterFunc(w.cfg.Drain, cancel) })
	defer unregister()

	started := time.Now()
	defer func() { w.metrics.handling.Observe(time.Since(started).Seconds()) }()
	return w.outcomes(ctx, handling, tasks)
}

// outcomes calls the handler with tasks, and after an error with each half of them. The context stop ends when the
// worker must stop, ctx when the handler must return.
func (w *Worker) outcomes(stop, ctx context.Context, tasks []Task) []Outcome {
	outcomes, err := w.call(ctx, tasks)
	switch {
	case err == nil:
		return outcomes
	case ctx.Err() != nil && stop.Err() != nil:
		return all(tasks, RetryIn(0)) // the worker stops: the attempt does not count as failed
	case ctx.Err() != nil:
		// The handler took too long. Any of the tasks may be the cause. The jitter of the backoff puts them into
		// different batches next time.
		return all(tasks, Fail(fmt.Errorf("not handled within %v: %w", w.cfg.Lease*4/5, err)))
	case len(tasks) == 1:
		return all(tasks, Fail(err))
	}
	half := len(tasks) / 2
	return append(w.outcomes(stop, ctx, tasks[:half]), w.outcomes(stop, ctx, tasks[half:])...)
}

// all returns the same outcome for each task.
func all(tasks []Task, o Outcome) []Outcome {
	outcomes := make([]Outcome, len(tasks))
	for i := range outcomes {
		outcomes[i] = o
	}
	return outcomes
}

// call calls the handler once. It turns a panic, or a wrong number of outcomes, into an error.
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
		return nil, fmt.Errorf("the handler must return one outcome for each task: expected %d, found %d",
			len(tasks), len(outcomes))
	}
	return outcomes, err
}

// settlement holds the outcomes of a batch, grouped by the operation that settles them.
type settlement struct {
	done  []string
	again []Requeue
	dead  []Burial
}

// settle writes the outcomes of a batch to the queue. If Redis does not answer, the leases end and the tasks are
// delivered again.
func (w *Worker) settle(ctx context.Context, b Batch, outcomes []Outcome) error {
	// Settling goes on after ctx has ended: otherwise tasks that are handled already would be handled a second time.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	s := w.decide(b.Tasks, outcomes)
	var errs []error
	count := func(outcome string, wanted, held int, err error) {
		errs = append(errs, err)
		w.metrics.settled.WithLabelValues(outcome).Add(float64(held))
		if lost := wanted - held; err == nil && lost > 0 {
			w.metrics.lost.Add(float64(lost))
			w.log.Warn("leases ended before their tasks were settled; the tasks are delivered again",
				"outcome", outcome, "tasks", lost)
		}
	}
	if len(s.done) > 0 {
		held, err := w.queue.Ack(ctx, b, s.done...)
		count("done", len(s.done), held, err)
	}
	if len(s.again) > 0 {
		held, err := w.queue.Retry(ctx, b, s.again...)
		count("retry", len(s.again), held, err)
		w.wakeUp(b.shard) // the first of these tasks may be due before the next claim
	}
	if len(s.dead) > 0 {
		held, err := w.queue.Bury(ctx, b, s.dead...)
		count("bury", len(s.dead), held, err)
	}
	return errors.Join(errs...)
}

// maxLogged limits the log lines of a batch: those about failed tasks, and those about new dead letters.
const maxLogged = 5

// decide groups outcomes, and logs failed tasks and new dead letters.
func (w *Worker) decide(tasks []Task, outcomes []Outcome) settlement {
	var s settlement
	failed := 0 // not counting the dead letters
	for i, o := range outcomes {
		task := tasks[i]
		switch {
		case o.retry:
			s.again = append(s.again, Requeue{ID: task.ID, In: o.in})
		case o.err == nil:
			s.done = append(s.done, task.ID)
		case task.Attempts+1 >= w.cfg.MaxAttempts:
			s.dead = append(s.dead, Burial{ID: task.ID, Err: o.err.Error()})
			if len(s.dead) <= maxLogged {
				w.log.Error("task is a dead letter now; remove the cause, then redrive it",
					"task", task.ID, "attempts", task.Attempts+1, "error", o.err)
			}
		default:
			wait := w.backoff(task.Attempts)
			s.again = append(s.again, Requeue{ID: task.ID, In: wait, Err: o.err.Error()})
			if failed++; failed <= maxLogged {
				w.log.Warn("task failed and will be tried again",
					"task", task.ID, "attempts", task.Attempts+1, "in", wait, "error", o.err)
			}
		}
	}
	if failed > maxLogged || len(s.dead) > maxLogged {
		w.log.Warn("more tasks of the batch failed",
			"tried_again", max(failed-maxLogged, 0), "dead", max(len(s.dead)-maxLogged, 0))
	}
	return s
}

// backoff returns the wait after a failed attempt. attempts is the number of failed attempts before it.
func (w *Worker) backoff(attempts int) time.Duration {
	wait := w.cfg.BackoffMin << min(attempts, 30)
	if wait <= 0 || wait > w.cfg.BackoffMax {
		wait = w.cfg.BackoffMax
	}
	return jitter(wait)
}

// jitter returns a random duration from half of d to one and a half times d, so that tasks that failed together are not
// tried again together.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d)
}
