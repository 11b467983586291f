// Package delay delivers tasks at their due times, at least once, even if processes or servers die in between.
//
// A task is a kind and an id, without further data: the program that schedules the task keeps the data in a table of
// its own. Tasks wait in Redis sorted sets ([Queue]). A [Worker] claims due tasks under a lease and passes them to a
// [Handler] in batches.
//
// A program first writes a task to an [Outbox] table, in the transaction that makes the task necessary. After the
// commit a [Publisher] copies the task to Redis. A [Relay] copies the tasks that the publisher could not copy.
//
// A task may be delivered more than once, so handlers must be idempotent. A task may also be delivered early, for
// instance after Redis's clock jumped. So a handler asks its table whether the task is due, and answers [RetryIn] if
// the task is not due.
//
// The package never compares two clocks. Redis's clock decides when a task is delivered. A process sends Redis only a
// duration: the time left until the due time, measured by the clock that decides the deadline.
package delay

import (
	"context"
	"errors"
	"time"
)

// Message requests one delivery of a task. It keeps the due time on the local monotonic clock. So the time that passes
// before the message is sent to Redis counts as waited, and a changed wall clock does not matter.
type Message struct {
	ID     string
	due    time.Time
	rowDue time.Time // the due time of the outbox row of the task; zero if unknown
}

// In returns a message that requests the delivery of the task id after the duration left. If left is negative, the task
// is overdue. The duration begins with the call, so call In as soon as the duration is known.
//
// A [Publisher] deletes the outbox row of the task after it has published the message, whatever due time the row has.
// Use [At] for a task whose due time may move forward while it is in the outbox.
func In(id string, left time.Duration) Message {
	return Message{ID: id, due: time.Now().Add(left)}
}

// At returns a message that requests the delivery of the task id at the time due. Both due and now are read from the
// clock that decides the deadline, with the precision of the database, and due is the due time of the outbox row. After
// a [Publisher] has published the message, it deletes the row only if no transaction has moved the row's due time
// forward in the meantime. The message keeps the duration from now to due, so call At as soon as now is known.
func At(id string, due, now time.Time) Message {
	m := In(id, due.Sub(now))
	m.rowDue = due
	return m
}

// Due returns the time, on the local monotonic clock, when the task is due.
func (m Message) Due() time.Time { return m.due }

// Left returns the time left until the task is due, negative if the task is overdue.
func (m Message) Left() time.Duration { return time.Until(m.due) }

// Task is a claimed task, as a [Handler] receives it.
type Task struct {
	ID       string
	Attempts int // failed attempts so far
}

// Outcome is a handler's answer for one task: [Done], [RetryIn] or [Fail].
type Outcome struct {
	retry bool
	in    time.Duration
	err   error
}

// Done acknowledges the task.
func Done() Outcome { return Outcome{} }

// RetryIn returns the task to the queue, due again after d. The attempt does not count as failed. Use RetryIn for a
// task that came early, and for a task that could not be handled for a reason outside the task.
func RetryIn(d time.Duration) Outcome { return Outcome{retry: true, in: d} }

// RetrySoon returns the task to the queue, due again in about a second. Use RetrySoon for a task that could not be
// handled because a server is away or a row is locked. The durations are random, so that tasks that were postponed at
// the same time do not all come back at the same time. If ctx has ended because the worker stops, the task is due at
// once, so that another worker can claim it.
func RetrySoon(ctx context.Context) Outcome {
	if errors.Is(ctx.Err(), context.Canceled) {
		return RetryIn(0)
	}
	return RetryIn(jitter(time.Second))
}

// Fail counts a failed attempt. The worker tries the task again after an exponential backoff. After the last attempt
// the task becomes a dead letter. If err is nil, the attempt counts as failed too.
func Fail(err error) Outcome {
	if err == nil {
		err = errors.New("the handler gave no reason")
	}
	return Outcome{err: err}
}

// Outage returns the error of a [Handler] that could not handle its tasks for a reason which is probably outside of
// them, such as a server that is away. answered tells that the server answered with an error: then the handler may
// succeed with some of the tasks, and the others are the cause. If it succeeds with none, no attempt counts as failed.
func Outage(err error, answered bool) error { return &outage{err, answered} }

// IsOutage reports whether [Outage] returned an error, or one that it wraps, and returns its argument answered.
func IsOutage(err error) (answered, ok bool) {
	o, ok := errors.AsType[*outage](err)
	return ok && o.answered, ok
}

type outage struct {
	error
	answered bool
}

func (o *outage) Unwrap() error { return o.error }

// Retry reports whether [RetryIn] returned the outcome, and returns the duration that was passed to RetryIn.
func (o Outcome) Retry() (in time.Duration, ok bool) { return o.in, o.retry }

// Err returns the error of an outcome that [Fail] returned, and nil for other outcomes.
func (o Outcome) Err() error { return o.err }
