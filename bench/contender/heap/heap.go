// Package heap times out orders with a delay queue in the process, like Java's DelayQueue: a binary heap of orders by
// due time, and consumers that take an order when it is due.
//
// The queue is lost with the process, so it is filled from the table when the process starts. It needs memory for each
// pending order, and each process holds the orders that it placed or found at its start: several processes would cancel
// the same orders. Adding and taking cost O(log n).
package heap

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"example.com/shop/bench/contender"
	"example.com/shop/bench/contender/inprocess"
)

// Contenders is the one variant.
var Contenders = []contender.Info{{
	Name:     "in-process heap",
	Way:      "A delay queue in the process holds all pending orders, and workers cancel each order that is due.",
	Source:   "https://docs.oracle.com/en/java/javase/21/docs/api/java.base/java/util/concurrent/DelayQueue.html",
	Settings: "8 workers",
	Loads:    true,
	New: func(_ context.Context, env contender.Env) (contender.Contender, error) {
		return inprocess.New(env, &delayQueue{changed: make(chan struct{}, 1)}), nil
	},
}}

// delayQueue is the [inprocess.Timers].
type delayQueue struct {
	mu      sync.Mutex
	orders  byDue
	changed chan struct{} // has an element if orders were added
}

func (q *delayQueue) Add(orders ...contender.Order) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, order := range orders {
		heap.Push(&q.orders, order)
	}
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

func (q *delayQueue) Deliver(ctx context.Context, ids chan<- string) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		id, wait := q.take()
		if wait == 0 {
			select {
			case <-ctx.Done():
				return
			case ids <- id:
				continue
			}
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-q.changed:
		}
	}
}

// take removes the first order if it is due; else it returns how long to wait for the first order.
func (q *delayQueue) take() (id string, wait time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.orders) == 0 {
		return "", time.Hour
	}
	if left := q.orders[0].Left(); left > 0 {
		return "", left
	}
	return heap.Pop(&q.orders).(contender.Order).ID, 0
}

// byDue is a [heap.Interface].
type byDue []contender.Order

func (h byDue) Len() int           { return len(h) }
func (h byDue) Less(i, j int) bool { return h[i].Due.Before(h[j].Due) }
func (h byDue) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *byDue) Push(order any)    { *h = append(*h, order.(contender.Order)) }

func (h *byDue) Pop() any {
	last := len(*h) - 1
	order := (*h)[last]
	(*h)[last] = contender.Order{} // releases the id
	*h = (*h)[:last]
	return order
}
