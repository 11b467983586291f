package batch

import (
	"slices"
	"sync"
	"time"
)

// lanes form batches of the items that wait at the same time, and handle them. There is no timer: an item goes at once
// while fewer than max batches are under way. The items that arrive later make up the next batch.
type lanes[T comparable] struct {
	run     func([]T)     // handles a batch
	max     int           // the largest number of batches under way at the same time: [Config.Lanes]
	size    int           // the largest number of items of a batch: [Config.Size]
	maxWait time.Duration // the time for which the first item in the queue may wait: [Config.MaxWait]

	mu      sync.Mutex
	running int          // batches under way
	queue   []arrival[T] // in order of arrival
}

// arrival is an item in the queue.
type arrival[T comparable] struct {
	item T
	at   time.Time
}

// add puts an item into the queue, and reports whether it was taken. Items are handled in order of arrival.
func (l *lanes[T]) add(item T) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if l.overloadedAt(now) {
		return false
	}
	l.queue = append(l.queue, arrival[T]{item, now})
	if l.running < l.max {
		l.running++
		go l.runAll(l.take())
	}
	return true
}

// overloaded reports whether no further items are taken now.
func (l *lanes[T]) overloaded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.overloadedAt(time.Now())
}

// overloadedAt is overloaded at a given time. The caller has locked the mutex.
func (l *lanes[T]) overloadedAt(now time.Time) bool {
	return len(l.queue) > 0 && now.Sub(l.queue[0].at) > l.maxWait
}

// remove takes an item out of the queue, and reports whether it was there. If not, a batch has the item already.
func (l *lanes[T]) remove(item T) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.queue, func(a arrival[T]) bool { return a.item == item })
	if i >= 0 {
		l.queue = slices.Delete(l.queue, i, i+1)
	}
	return i >= 0
}

// runAll handles a batch, and then the batches that have formed meanwhile.
func (l *lanes[T]) runAll(batch []T) {
	for len(batch) > 0 {
		l.run(batch)
		batch = l.next()
	}
}

// next takes the next batch from the queue. It returns nil, and ends the lane, if the queue is empty.
func (l *lanes[T]) next() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	batch := l.take()
	if len(batch) == 0 {
		l.running--
	}
	return batch
}

// take removes a batch from the queue. The caller has locked the mutex.
func (l *lanes[T]) take() []T {
	n := min(len(l.queue), l.size)
	batch := make([]T, n)
	for i, a := range l.queue[:n] {
		batch[i] = a.item
	}
	l.queue = slices.Delete(l.queue, 0, n)
	return batch
}
