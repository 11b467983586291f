// Package delay delivers a task no earlier than its due time, at least once, whatever dies in between.
//
// A task is an id of a kind; the facts stay in the table of whoever scheduled it. Tasks wait in Redis
// sorted sets ([Queue]) until a [Worker] claims them under a lease and hands them to a [Handler], in
// batches. What is scheduled is first written to an [Outbox] table in the transaction that it belongs
// to; a [Publisher] brings it to Redis right after the commit, and a [Relay] brings what the
// publisher could not.
//
// Delivery is at least once and may be early by a little, so a handler asks its table whether the task
// is really due and answers [RetryIn] if it is not. Handlers must be idempotent.
//
// No two clocks are compared. Redis's clock orders the queue, and only durations reach it: what is
// left until the due time, measured by the clock that owns the deadline.
package delay

import "time"

// Message asks for one delivery of a task. It keeps its wait on the local monotonic clock, so the time
// it spends on its way to Redis is taken off and a changed wall clock does not matter.
type Message struct {
	ID  string
	due time.Time
}

// In returns the message that asks for the delivery of id once left has passed from now; a negative
// left is overdue. Call it as soon as the duration is known.
func In(id string, left time.Duration) Message {
	return Message{ID: id, due: time.Now().Add(left)}
}

// Left is the time until the message's task is due, negative if it is overdue.
func (m Message) Left() time.Duration { return time.Until(m.due) }

// Task is one delivery.
type Task struct {
	ID       string
	Attempts int // failed attempts so far
}

// Outcome says what becomes of a delivered task: [Done], [RetryIn] or [Fail].
type Outcome struct {
	retry bool
	in    time.Duration
	err   error
}

// Done acknowledges the task.
func Done() Outcome { return Outcome{} }

// RetryIn returns the task to the queue, due again after d. It is not a failure and counts no attempt:
// the answer for a task that came early, or whose row is locked by someone else.
func RetryIn(d time.Duration) Outcome { return Outcome{retry: true, in: d} }

// Fail counts a failed attempt. The task is tried again after an exponential backoff and becomes a dead
// letter with its last attempt. A nil err is a failure like any other.
func Fail(err error) Outcome {
	if err == nil {
		err = errNoReason
	}
	return Outcome{err: err}
}
