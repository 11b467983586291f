package delay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// Handler handles a batch of tasks. It returns one outcome for each task, at the same index.
//
// After an error or a panic the worker calls the handler again with each half of the batch, and so on. A task fails
// if the handler returns an error for this task alone. So tasks of a failed batch may be handled more than once.
// If the cause is probably outside the tasks, for instance a database that does not answer, return an [Outage].
//
// The context ends after the timeout. All tasks that have no outcome then fail, because any of them may have taken
// the time. If the worker must stop, the context ends at the latest when the drain time has passed. Then the tasks
// that have no outcome are due again at once, and their attempts do not count as failed.
//
// The worker renews the leases of the batch while the handler works. The context also ends if the worker cannot renew
// them, because Redis does not answer, or because the leases ended while the process was suspended. Then another
// worker gets the tasks.
type Handler func(ctx context.Context, tasks []Task) ([]Outcome, error)

// WorkerConfig configures a worker. Zero fields get the defaults.
type WorkerConfig struct {
	Loops int           // the number of claim loops for each shard. Default 2
	Batch int           // the largest number of tasks in one claim, at most 1,000. Default 500
	Drain time.Duration // the time that the handler has left when the worker must stop. Default 3 s
}

// maxAttempts is the number of failed attempts that makes a task a dead letter.
const maxAttempts = 10

// Worker claims due tasks and calls a handler with them. Any number of workers may run, in any number of processes.
type Worker struct {
	queue   *Queue
	handler Handler
	cfg     WorkerConfig
	log     *slog.Logger
	metrics workerMetrics
	watches []watch // one for each shard

	timeout time.Duration // the time that the handler has for a batch
	lease   time.Duration // from the last renewal of a lease to its end; the tasks of a killed worker wait so long
	maxIdle time.Duration // the longest sleep, and so the longest delay after a lost wake-up
}

// watch is the part of a worker that the loops of one shard share. One loop at a time has the turn: it sleeps until a
// task is due, and claims a batch. Then it passes the turn on, with the time of the next claim, and handles the
// batch:
//
//	loop 1   sleep, claim ─┐ handle ─▶ wait ─┌─ sleep, claim ─┐ handle
//	                       │ turn            │ turn           │ turn
//	loop 2   wait ─────────└─ sleep, claim ──┘ handle ─▶ wait └─ sleep, claim
//
// So an idle shard costs the same few commands, however many loops it has.
type watch struct {
	turn    chan time.Time // has one value, the time of the next claim; the loop that receives it has the turn
	wake    chan struct{}  // ends the sleep; buffered by one: wake-ups coalesce
	failing atomic.Bool    // the last claim failed, or the outcomes of its batch could not be written
}

// NewWorker returns a worker that [Worker.Run] starts.
func NewWorker(q *Queue, h Handler, cfg WorkerConfig, log *slog.Logger, reg prometheus.Registerer) *Worker {
	cfg = WorkerConfig{
		Loops: cmp.Or(cfg.Loops, 2), Batch: cmp.Or(cfg.Batch, 500), Drain: cmp.Or(cfg.Drain, 3*time.Second),
	}
	w := &Worker{
		queue: q, handler: h, cfg: cfg, log: log.With("kind", q.kind),
		metrics: newWorkerMetrics(reg, q.kind),
		watches: make([]watch, len(q.shards)),
		timeout: 8 * time.Second, lease: 2500 * time.Millisecond, maxIdle: 30 * time.Second,
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
		batch, err := w.claimNext(ctx, shard)
		if err == nil {
			err = w.handle(ctx, batch)
		}
		if ctx.Err() != nil {
			return nil
		}
		failed := err != nil
		before := w.watches[shard].failing.Swap(failed)
		switch {
		case failed && !before:
			w.log.Warn("worker cannot use its queue; it keeps trying", "error", err)
		case before && !failed:
			w.log.Info("worker can use its queue again")
		}
	}
	return nil
}

// claimNext waits for its turn. Then it sleeps until a task is due or a lease ends, or until a wake-up says that
// another task is due earlier, and claims a batch. The batch may be empty.
func (w *Worker) claimNext(ctx context.Context, shard int) (batch Batch, err error) {
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
	if batch, err = w.queue.Claim(ctx, shard, w.cfg.Batch, w.lease); err != nil {
		at = time.Now().Add(jitter(time.Second))
		return Batch{}, err
	}
	at = time.Now().Add(min(batch.Next, w.maxIdle))
	return batch, nil
}

// wakeUp ends the sleep of the loop that has the turn of a shard.
func (w *Worker) wakeUp(shard int) {
	select {
	case w.watches[shard].wake <- struct{}{}:
	default:
	}
}

// listen receives wake-ups from Redis. After an outage the Redis client subscribes again by itself. If Sentinels name
// the master, listen subscribes anew after a silence of maxIdle, because the subscription may be at a former master. A
// lost wake-up delays a task by at most maxIdle.
func (w *Worker) listen(ctx context.Context) error {
	for ctx.Err() == nil {
		w.listenUntilSilent(ctx)
	}
	return nil
}

func (w *Worker) listenUntilSilent(ctx context.Context) {
	sub := w.queue.rdb.Subscribe(ctx, w.queue.channel())
	defer sub.Close()
	// The client's health check is off, because it sends PING but does not wait for the answer. TCP keep-alive detects
	// a dead connection without a command.
	messages := sub.ChannelWithSubscriptions(redis.WithChannelHealthCheckInterval(0))
	for {
		var silence <-chan time.Time
		if followsSentinels(w.queue.rdb) {
			silence = time.After(w.maxIdle)
		}
		select {
		case <-ctx.Done():
			return
		case <-silence:
			return
		case message := <-messages:
			// A message that is not a wake-up confirms a new subscription. It wakes a loop of each shard, because
			// wake-ups may have been lost before.
			published, isWakeUp := message.(*redis.Message)
			for i, shard := range w.queue.shards {
				if !isWakeUp || published.Payload == shard.number {
					w.wakeUp(i)
				}
			}
		}
	}
}

// handle calls the handler with the tasks of a batch and writes the outcomes to the queue.
func (w *Worker) handle(ctx context.Context, batch Batch) error {
	if len(batch.Tasks) == 0 {
		return nil
	}
	handling, lose := context.WithCancelCause(context.WithoutCancel(ctx))
	defer lose(nil)
	handled, kept := make(chan struct{}), make(chan Batch)
	go func() { kept <- w.keep(handling, batch, handled, lose) }()
	outcomes := w.outcomesWithTimeout(ctx, handling, batch.Tasks)
	close(handled)
	// A renewal may be under way, and the outcomes need its token. So wait for the batch that keep returns.
	return w.writeOutcomes(ctx, <-kept, outcomes)
}

// errLost is the cause with which the context of a handler ends when its batch has no leases any more.
var errLost = errors.New("the leases of the batch have ended")

// keep renews the leases of a batch until handled is closed, at most until a quarter of the lease after the handler's
// timeout. It returns the batch with their last token. If the leases have ended, or end before another renewal, keep
// calls lose with errLost.
//
// A handler that takes less than a quarter of the lease needs no renewal. Each renewal may take a quarter of the
// lease, too. If Redis executes one whose reply is lost, the batch loses its leases: see [Queue.Renew].
func (w *Worker) keep(ctx context.Context, b Batch, handled <-chan struct{}, lose context.CancelCauseFunc) Batch {
	pause := w.lease / 4
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	giveUp := time.NewTimer(w.timeout + pause)
	defer giveUp.Stop()
	for {
		select {
		case <-handled:
			return b
		case <-giveUp.C:
			w.log.Error("a handler has not returned after its timeout; its leases are not renewed any more, "+
				"so its tasks are delivered again", "timeout", w.timeout, "tasks", len(b.Tasks))
			return b
		case <-ticker.C:
		}
		select {
		case <-handled: // the select above chooses at random if several channels are ready
			return b
		default:
		}
		renewing, cancel := context.WithTimeout(ctx, pause)
		renewed, err := w.queue.Renew(renewing, &b, w.lease)
		cancel()
		if err == nil && !renewed || err != nil && time.Until(b.ends) <= pause {
			lose(errLost)
			return b
		}
	}
}

// outcomesWithTimeout calls the handler with the timeout. When stop ends, the handler has at most the drain time left.
func (w *Worker) outcomesWithTimeout(stop, ctx context.Context, tasks []Task) []Outcome {
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	unregister := context.AfterFunc(stop, func() { time.AfterFunc(w.cfg.Drain, cancel) })
	defer unregister()

	started := time.Now()
	defer func() { w.metrics.handling.Observe(time.Since(started).Seconds()) }()
	return w.outcomes(stop, ctx, tasks)
}

// outcomes returns the outcomes of tasks. Tasks that fail because of an [Outage] are postponed, unless the handler
// succeeded with others: then they are the cause. The context stop ends when the worker must stop, ctx when the handler
// must return.
func (w *Worker) outcomes(stop, ctx context.Context, tasks []Task) []Outcome {
	outcomes := w.outcomesOfParts(stop, ctx, tasks, false)
	none := !slices.ContainsFunc(outcomes, func(o Outcome) bool { return o.err == nil })
	var last error
	postponed := 0
	for i, o := range outcomes {
		if answered, ok := IsOutage(o.err); ok && (none || !answered) {
			outcomes[i], last = RetrySoon(ctx), o.err
			postponed++
		}
	}
	if postponed > 0 {
		w.log.Warn("tasks cannot be handled now; they are postponed", "tasks", postponed, "error", last)
	}
	return outcomes
}

// outcomesOfParts calls the handler with tasks, and after an error with each half of them. inOutage tells that an
// [Outage] was the error of a larger part.
func (w *Worker) outcomesOfParts(stop, ctx context.Context, tasks []Task, inOutage bool) []Outcome {
	outcomes, err := w.call(ctx, tasks)
	answered, isOutage := IsOutage(err)
	inOutage = inOutage || isOutage
	switch {
	case err == nil:
		return outcomes
	case isOutage && !answered:
		return sameForAll(tasks, Fail(err))
	case ctx.Err() != nil && (inOutage || stop.Err() != nil || errors.Is(context.Cause(ctx), errLost)):
		return sameForAll(tasks, Fail(Outage(err, false))) // nobody knows whether these tasks fail
	case ctx.Err() != nil:
		// The handler took too long. Any of the tasks may be the cause. The jitter of the backoff puts them into
		// different batches next time.
		return sameForAll(tasks, Fail(fmt.Errorf("not handled within %v: %w", w.timeout, err)))
	case len(tasks) == 1:
		return sameForAll(tasks, Fail(err))
	}
	half := len(tasks) / 2
	return append(w.outcomesOfParts(stop, ctx, tasks[:half], inOutage),
		w.outcomesOfParts(stop, ctx, tasks[half:], inOutage)...)
}

// sameForAll returns the same outcome for each task.
func sameForAll(tasks []Task, o Outcome) []Outcome { return slices.Repeat([]Outcome{o}, len(tasks)) }

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
	outcomes, err = w.handler(ctx, tasks)
	if err == nil && len(outcomes) != len(tasks) {
		return nil, fmt.Errorf("the handler must return one outcome for each task: expected %d, found %d",
			len(tasks), len(outcomes))
	}
	return outcomes, err
}

// writeOutcomes writes the outcomes of a batch to the queue. If Redis does not answer, the leases end and the tasks
// are delivered again.
func (w *Worker) writeOutcomes(ctx context.Context, b Batch, outcomes []Outcome) error {
	// Write them also after ctx has ended: otherwise tasks that are handled already would be handled a second time.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	var errs []error
	count := func(outcome string, wanted, written int, err error) {
		errs = append(errs, err)
		w.metrics.deliveries.WithLabelValues(outcome).Add(float64(written))
		if lost := wanted - written; err == nil && lost > 0 {
			w.metrics.lost.Add(float64(lost))
			w.log.Warn("leases ended before the outcomes of their tasks were written; the tasks are delivered again",
				"outcome", outcome, "tasks", lost)
		}
	}
	ack, retry, bury := w.group(b.Tasks, outcomes)
	if len(ack) > 0 {
		written, err := w.queue.Ack(ctx, b, ack...)
		count("done", len(ack), written, err)
	}
	if len(retry) > 0 {
		written, err := w.queue.Retry(ctx, b, retry...)
		count("retry", len(retry), written, err)
		w.wakeUp(b.shard) // the first of these tasks may be due before the next claim
	}
	if len(bury) > 0 {
		written, err := w.queue.Bury(ctx, b, bury...)
		count("bury", len(bury), written, err)
	}
	return errors.Join(errs...)
}

// maxLogged bounds the log lines about a batch: the lines about its failed tasks, and those about its new dead letters.
const maxLogged = 5

// group groups outcomes by the method of [Queue] that writes them, and logs failed tasks and new dead letters.
func (w *Worker) group(tasks []Task, outcomes []Outcome) (ack []string, retry []Requeue, bury []Burial) {
	failed := 0 // not counting the dead letters
	for i, o := range outcomes {
		task := tasks[i]
		switch {
		case o.retry:
			retry = append(retry, Requeue{ID: task.ID, In: o.in})
		case o.err == nil:
			ack = append(ack, task.ID)
		case task.Attempts+1 >= maxAttempts:
			bury = append(bury, Burial{ID: task.ID, Err: o.err.Error()})
			if len(bury) <= maxLogged {
				w.log.Error("task is a dead letter now; remove the cause, then redrive it",
					"task", task.ID, "attempts", task.Attempts+1, "error", o.err)
			}
		default:
			wait := backoff(task.Attempts)
			retry = append(retry, Requeue{ID: task.ID, In: wait, Err: o.err.Error()})
			if failed++; failed <= maxLogged {
				w.log.Warn("task failed and will be tried again",
					"task", task.ID, "attempts", task.Attempts+1, "in", wait, "error", o.err)
			}
		}
	}
	if failed > maxLogged || len(bury) > maxLogged {
		w.log.Warn("more tasks of the batch failed",
			"tried_again", max(failed-maxLogged, 0), "dead", max(len(bury)-maxLogged, 0))
	}
	return ack, retry, bury
}

// backoff returns the wait after a failed attempt. It is about a second after the first one and doubles with each
// further one, so it is about four minutes before the last. attempts is the number of failed attempts before this one.
func backoff(attempts int) time.Duration { return jitter(time.Second << attempts) }

// jitter returns a random duration from half of d to one and a half times d, so that tasks that failed at the same
// time are not all tried again at the same time.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d)
}
