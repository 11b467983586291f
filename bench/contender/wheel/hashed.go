package wheel

import (
	"context"
	"sync"
	"time"

	"example.com/shop/bench/contender"
)

// The defaults of Netty's HashedWheelTimer.
const (
	hashedTick  = 100 * time.Millisecond
	hashedSlots = 512
)

// hashed is a hashed timing wheel.
type hashed struct {
	start time.Time
	mu    sync.Mutex
	next  int64 // the tick that the wheel reaches next
	slots [hashedSlots][]timer
}

func (w *hashed) Add(orders ...contender.Order) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, order := range orders {
		t := timerOf(order, w.start, hashedTick, w.next)
		slot := &w.slots[t.tick%hashedSlots]
		*slot = append(*slot, t)
	}
}

func (w *hashed) Deliver(ctx context.Context, ids chan<- string) {
	ticker := time.NewTicker(hashedTick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		// The ticker drops ticks while workers keep the wheel waiting. The wheel catches up with the clock.
		for passed := int64(time.Since(w.start) / hashedTick); w.next <= passed; {
			if !send(ctx, ids, w.turn()) {
				return
			}
		}
	}
}

// turn removes the due timers of the slot at the tick next, and moves on to the next slot.
func (w *hashed) turn() (due []timer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	slot := &w.slots[w.next%hashedSlots]
	later := (*slot)[:0]
	for _, t := range *slot {
		if t.tick <= w.next {
			due = append(due, t)
		} else {
			later = append(later, t)
		}
	}
	clear((*slot)[len(later):]) // releases the ids
	*slot = later
	w.next++
	return due
}
