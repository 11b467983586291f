package order

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"example.com/shop/internal/batch"
	"example.com/shop/internal/rest"
)

// The statements whose plans or locks tests check, and which benchmarks execute.
var (
	ListSQL     = listSQL
	LockSQL     = lockSQL
	ExistingSQL = existingSQL
	OpenSQL     = openSQL
	PlaceSQL    = placeSQL
	BacklogSQL  = figures()["orders"]
	LatenessSQL = figures()["lateness"]
	WhereSQL    = whereSQL
	BookSQL     = bookSQL

	ReturnStockSQL = returnStockSQL

	InvariantsSQL = invariantsSQL
)

// The statements of the worker and the reconciler.
var PendingSQL, CancelDueSQL = new(Service).Rows().Statements()

// Lanes are the lanes of a service's placements. A test holds them, so that it decides which placements make up a
// batch.
type Lanes struct {
	placements *batch.Batcher[*placing]
	holder     sync.Mutex // locked while the lanes are held
}

// hold marks an item that keeps a lane busy after its batch. The item is no placement.
type hold struct {
	error
	entered, released chan struct{} // closed when a lane has the item, and when the lane may go on
}

// LanesOf returns the lanes of a service. Call it before the service is used.
func LanesOf(s *Service) *Lanes {
	run, after := s.placements.Run, s.placements.AfterCommit
	s.placements.Run = func(ctx context.Context, items []*placing, skipLocked bool) ([]*placing, error) {
		if items = withoutHolds(items); len(items) == 0 {
			return nil, nil
		}
		return run(ctx, items, skipLocked)
	}
	s.placements.AfterCommit = func(ctx context.Context, items []*placing) {
		if placings := withoutHolds(items); len(placings) > 0 {
			after(ctx, placings)
		}
		for _, item := range items {
			if h := holdOf(item); h != nil {
				close(h.entered)
				<-h.released
			}
		}
	}
	return &Lanes{placements: s.placements}
}

func withoutHolds(items []*placing) []*placing {
	return slices.DeleteFunc(slices.Clone(items), func(item *placing) bool { return holdOf(item) != nil })
}

// holdOf returns the hold that an item is, or nil for a placement.
func holdOf(item *placing) *hold {
	if item.rejection == nil {
		return nil
	}
	h, _ := item.rejection.Err.(*hold)
	return h
}

// Hold makes all lanes busy until release. It waits for the batches that are under way, and for those who hold the
// lanes.
func (l *Lanes) Hold() (release func()) {
	l.holder.Lock()
	released := make(chan struct{})
	for range placementLanes {
		h := &hold{entered: make(chan struct{}), released: released}
		if err := l.placements.Do(context.Background(), &placing{rejection: &rest.Error{Err: h}}); err != nil {
			panic(fmt.Sprintf("a lane of the placements cannot be held: %v", err))
		}
		<-h.entered
	}
	return func() {
		close(released)
		l.holder.Unlock()
	}
}

// TakeEvents returns the events that the methods of an order have added, and removes them from it.
func TakeEvents(o *Order) []Event {
	events := o.events
	o.events = nil
	return events
}
