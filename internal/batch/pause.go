package batch

import (
	"math"
	"time"
)

// Pause waits until all lanes are idle, and then keeps items in the queue, as if all lanes were busy. waiting returns how
// many items are in the queue. resume makes a batch of the first of them. If isPatient is true, no item is rejected because
// it waits until resume.
//
// Pause is for the tests of packages that use a queue: with it a test decides which items make up a batch.
func (q *Queue[T, K]) Pause(isPatient bool) (waiting func() int, resume func()) {
	l := &q.lanes
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.running > 0 { // after its callers have their results, a lane still calls Handled
		l.mu.Unlock()
		<-time.After(100 * time.Microsecond)
		l.mu.Lock()
	}
	l.running += l.max
	if isPatient {
		l.maxWait = math.MaxInt64
	}
	waiting = func() int {
		l.mu.Lock()
		defer l.mu.Unlock()
		return len(l.queue)
	}
	resume = func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.running -= l.max
		l.maxWait = q.cfg.MaxWait
		if len(l.queue) > 0 {
			l.running++
			go l.runAll(l.take())
		}
	}
	return waiting, resume
}
