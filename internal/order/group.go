package order

import (
	"slices"
	"sync"
	"time"
)

// group forms batches of the items that wait at the same time, for a group commit. It has no timer: an item goes at
// once while fewer than lanes batches are under way. The items that arrive later make up the next batch.
type group[T comparable] struct {
	run     func([]T)     // handles a batch
	lanes   int           // the most batches that are under way at the same time
	size    int           // the most items of a batch
	maxWait time.Duration // while the first item in the queue has waited longer, the group takes no further items

	mu      sync.Mutex
	running int // batches under way
	queue   []arrival[T]
}

// arrival is an item in the queue of a group.
type arrival[T comparable] struct {
	item T
	at   time.Time
}

// add puts an item into the queue, and reports whether the group has taken it. The group handles its items in order of
// arrival.
func (g *group[T]) add(item T) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.overloadedAt(now) {
		return false
	}
	g.queue = append(g.queue, arrival[T]{item, now})
	if g.running < g.lanes {
		g.running++
		go g.work(g.take())
	}
	return true
}

// overloaded reports whether the group takes no further items now.
func (g *group[T]) overloaded() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.overloadedAt(time.Now())
}

func (g *group[T]) overloadedAt(now time.Time) bool {
	return len(g.queue) > 0 && now.Sub(g.queue[0].at) > g.maxWait
}

// remove takes an item out of the queue, and reports whether it was there. An item that was not there is in a batch.
func (g *group[T]) remove(item T) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.IndexFunc(g.queue, func(a arrival[T]) bool { return a.item == item })
	if i >= 0 {
		g.queue = slices.Delete(g.queue, i, i+1)
	}
	return i >= 0
}

// work handles a batch, and then those that have formed meanwhile.
func (g *group[T]) work(batch []T) {
	for len(batch) > 0 {
		g.run(batch)
		batch = g.next()
	}
}

// next takes the next batch from the queue. It returns nil, and ends the lane, if the queue is empty.
func (g *group[T]) next() []T {
	g.mu.Lock()
	defer g.mu.Unlock()
	batch := g.take()
	if len(batch) == 0 {
		g.running--
	}
	return batch
}

// take removes a batch from the queue. The caller holds the mutex.
func (g *group[T]) take() []T {
	n := min(len(g.queue), g.size)
	batch := make([]T, n)
	for i, a := range g.queue[:n] {
		batch[i] = a.item
	}
	g.queue = slices.Delete(g.queue, 0, n)
	return batch
}
