package order

import (
	"math"
	"time"
)

// The statements whose plans TestQueryPlans checks, and which benchmarks execute.
var (
	CancelDueSQL = cancelDueSQL
	PlaceSQL     = placeSQL
	LockSQL      = lockSQL
	PendingSQL   = pendingSQL
	LatenessSQL  = latenessSQL
	CloseSaleSQL = closeSaleSQL
	RemindSQL    = remindSQL
)

// MaxPlacementWait is the wait for a batch at which the service begins to reject placements.
const MaxPlacementWait = maxPlacementWait

// MaxUnderWay is the most placements that are under way at the same time.
const MaxUnderWay = maxUnderWay

// ProductLockWait is the time for which a batch waits for a lock.
const ProductLockWait = productLockWait

// NewGroup returns a group.
func NewGroup[T comparable](run func([]T), lanes, size int, maxWait time.Duration) *group[T] {
	return &group[T]{run: run, lanes: lanes, size: size, maxWait: maxWait}
}

func (g *group[T]) Add(item T) bool    { return g.add(item) }
func (g *group[T]) Remove(item T) bool { return g.remove(item) }
func (g *group[T]) Overloaded() bool   { return g.overloaded() }

// HoldLanes waits until all lanes are idle, and then keeps placements in the queue, as if all lanes were busy. release
// makes a batch of the first ones. queued returns how many there are in the queue. With patient, no placement is
// rejected because it waits until release.
func (s *Service) HoldLanes(patient bool) (queued func() int, release func()) {
	g := s.placements
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.running > 0 { // after its callers have their answers, a lane still publishes the tasks
		g.mu.Unlock()
		<-time.After(100 * time.Microsecond)
		g.mu.Lock()
	}
	g.running += g.lanes
	if patient {
		g.maxWait = math.MaxInt64
	}
	queued = func() int {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.queue)
	}
	release = func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.running -= g.lanes
		g.maxWait = maxPlacementWait
		if len(g.queue) > 0 {
			g.running++
			go g.work(g.take())
		}
	}
	return queued, release
}
