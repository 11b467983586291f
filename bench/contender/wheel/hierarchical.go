package wheel

import (
	"container/heap"
	"context"
	"sync"
	"time"

	"example.com/shop/bench/contender"
)

// The defaults of Kafka's timer.
const (
	finestTick = time.Millisecond
	ringSlots  = 20
)

// hierarchical is a hierarchical timing wheel. As in Kafka, a queue of the slots that have timers says when the next
// slot begins, so the wheel does not wake up for empty slots.
type hierarchical struct {
	start   time.Time
	mu      sync.Mutex
	now     int64              // the begin of the slot that was emptied last, in ticks
	rings   []*[ringSlots]slot // the finest first; a slot of a ring spans a turn of the ring before it
	queue   byBegin            // the slots that have timers
	changed chan struct{}      // has an element if timers were added
}

type slot struct {
	begin  int64
	timers []timer
}

func (w *hierarchical) Add(orders ...contender.Order) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, order := range orders {
		w.add(timerOf(order, w.start, finestTick, w.now))
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// add adds the timer to the finest ring that reaches as far as its time.
func (w *hierarchical) add(t timer) {
	span := int64(1) // of a slot
	level := 0
	for t.tick/span-w.now/span >= ringSlots {
		span *= ringSlots
		level++
	}
	for len(w.rings) <= level {
		w.rings = append(w.rings, new([ringSlots]slot))
	}
	slot := &w.rings[level][t.tick/span%ringSlots]
	if len(slot.timers) == 0 {
		slot.begin = t.tick / span * span
		heap.Push(&w.queue, slot)
	}
	slot.timers = append(slot.timers, t)
}

func (w *hierarchical) Deliver(ctx context.Context, ids chan<- string) {
	clock := time.NewTimer(0)
	defer clock.Stop()
	for {
		due, wait := w.advance()
		if !send(ctx, ids, due) {
			return
		}
		clock.Reset(wait)
		select {
		case <-ctx.Done():
			return
		case <-clock.C:
		case <-w.changed:
		}
	}
}

// advance empties the slots whose time has begun. It returns their timers that are due, and how long to wait for the
// next slot.
func (w *hierarchical) advance() (due []timer, wait time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.queue) > 0 {
		begin := w.start.Add(time.Duration(w.queue[0].begin) * finestTick)
		if wait := time.Until(begin); wait > 0 {
			return due, wait
		}
		due = append(due, w.empty(heap.Pop(&w.queue).(*slot))...)
	}
	return due, time.Hour
}

// empty sets the wheel's time to the begin of the slot, moves the timers of the slot to finer rings, and returns those
// that are due.
func (w *hierarchical) empty(s *slot) (due []timer) {
	timers := s.timers
	s.timers = nil
	w.now = s.begin
	for _, t := range timers {
		if t.tick <= w.now {
			due = append(due, t)
		} else {
			w.add(t)
		}
	}
	return due
}

// byBegin is a [heap.Interface].
type byBegin []*slot

func (q byBegin) Len() int           { return len(q) }
func (q byBegin) Less(i, j int) bool { return q[i].begin < q[j].begin }
func (q byBegin) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *byBegin) Push(s any)        { *q = append(*q, s.(*slot)) }

func (q *byBegin) Pop() any {
	last := len(*q) - 1
	s := (*q)[last]
	*q = (*q)[:last]
	return s
}
