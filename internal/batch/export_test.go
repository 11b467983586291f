package batch

import "time"

// RejectLogInterval is the shortest time between two calls of OnReject.
const RejectLogInterval = rejectLogInterval

// NewLanes returns lanes.
func NewLanes[T comparable](run func([]T), lanesMax, size int, maxWait time.Duration) *lanes[T] {
	return &lanes[T]{run: run, max: lanesMax, size: size, maxWait: maxWait}
}

func (l *lanes[T]) Add(item T) bool    { return l.add(item) }
func (l *lanes[T]) Remove(item T) bool { return l.remove(item) }
func (l *lanes[T]) Overloaded() bool   { return l.overloaded() }

// Pause waits until all lanes are idle, and then keeps items in the queue until resume, as if all lanes were busy. So
// a test decides which items make up a batch. resume makes a batch of the first items in the queue.
func (q *Queue[T, K]) Pause() (resume func()) {
	l := &q.lanes
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.running > 0 { // after its callers have their results, a lane still calls Handled
		l.mu.Unlock()
		<-time.After(100 * time.Microsecond)
		l.mu.Lock()
	}
	l.running += l.max
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.running -= l.max
		if len(l.queue) > 0 {
			l.running++
			go l.runAll(l.take())
		}
	}
}
