package batch

import (
	"context"
	"slices"
	"sync"
	"time"
)

// lockedRows are the shared rows that other sessions have locked for long, each with the queue of the items that wait
// for it. Only the first items have waited in a lane. Later items go to the queue at once, and so delay no batch.
type lockedRows[T comparable, K comparable] struct {
	mu      sync.Mutex
	waiting map[K][]*waiter[T] // the items that wait for a row, by its key, in order of arrival
}

// enqueue takes the items out of a batch that need a row for which other items wait, and puts each of them into the
// queue of such a row. It returns the rest of the batch.
func (r *lockedRows[T, K]) enqueue(batch []*waiter[T], rows func(T) []K) []*waiter[T] {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) == 0 {
		return batch
	}
	return slices.DeleteFunc(slices.Clone(batch), func(w *waiter[T]) bool {
		for _, row := range rows(w.item) {
			if before, found := r.waiting[row]; found {
				r.waiting[row] = append(before, w)
				return true
			}
		}
		return false
	})
}

// enqueueFor puts items into the queue of a row, and reports whether they are the first.
func (r *lockedRows[T, K]) enqueueFor(row K, items []*waiter[T]) (isFirst bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, found := r.waiting[row]
	r.waiting[row] = append(before, items...)
	return !found
}

// take removes a row, and returns the items that waited for it.
func (r *lockedRows[T, K]) take(row K) []*waiter[T] {
	r.mu.Lock()
	defer r.mu.Unlock()
	items := r.waiting[row]
	delete(r.waiting, row)
	return items
}

// handleWhenFree waits until a shared row is free, and then handles the items that wait for it. It runs in a
// goroutine of its own for each locked row.
func (q *Queue[T, K]) handleWhenFree(row K) {
	ctx, cancel := context.WithTimeout(context.Background(), q.cfg.Timeout)
	defer cancel()
	leave, err := q.table.Gate.Enter(ctx)
	if err == nil {
		defer leave()
		err = q.table.WaitFor(ctx, row)
	}
	items := q.rows.take(row)
	if err != nil {
		fail(items, err)
		return
	}
	items = q.failExpired(items)
	for batch := range slices.Chunk(items, q.cfg.Size) {
		q.handleInParts(ctx, batch, q.cfg.LockWait)
	}
}

// failExpired fails those items that have waited for so long that their callers have gone, and returns the others.
func (q *Queue[T, K]) failExpired(items []*waiter[T]) (others []*waiter[T]) {
	var expired []*waiter[T]
	for _, w := range items {
		if time.Since(w.arrived) > q.cfg.Timeout {
			expired = append(expired, w)
		} else {
			others = append(others, w)
		}
	}
	fail(expired, context.DeadlineExceeded)
	return others
}

// handleAlone handles an item that has waited in a lane for a row that is not shared, for example the row of a
// customer. It runs in a goroutine of its own, and waits for the lock as long as the session's lock_timeout.
func (q *Queue[T, K]) handleAlone(w *waiter[T]) {
	ctx, cancel := context.WithTimeout(context.Background(), q.cfg.Timeout)
	defer cancel()
	alone := []*waiter[T]{w}
	leave, err := q.table.Gate.Enter(ctx)
	if err != nil {
		fail(alone, err)
		return
	}
	defer leave()
	q.handleInParts(ctx, alone, 0)
}
