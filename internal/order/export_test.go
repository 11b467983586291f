package order

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

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

// MaxPlacementWait is the time that the first placement in the queue may wait before the service rejects further ones.
const MaxPlacementWait = maxPlacementWait

// Lanes are the lanes of a service's placements. A test holds them, so that it decides which placements make up a
// batch.
type Lanes struct {
	placements *batch.Queue[*placing, uuid.UUID]
	holder     sync.Mutex // locked while the lanes are held
}

// hold marks an item that keeps a lane busy. The item is no placement.
type hold struct {
	error
	entered, released chan struct{} // closed when a lane has the item, and when the lane may go on
}

// NewLanes gives a service a new queue of placements, whose first one may wait for maxWait. Call it before the service
// is used.
func NewLanes(s *Service, maxWait time.Duration) *Lanes {
	cfg, table := s.placementQueue()
	cfg.MaxWait = maxWait
	handle, handled := table.Handle, table.Handled
	table.Handle = func(ctx context.Context, items []*placing, lockWait time.Duration) ([]*placing, error) {
		for _, item := range items {
			if h := holdOf(item); h != nil {
				close(h.entered)
				<-h.released
			}
		}
		if items = withoutHolds(items); len(items) == 0 {
			return nil, nil
		}
		return handle(ctx, items, lockWait)
	}
	table.Handled = func(ctx context.Context, items []*placing) {
		if items = withoutHolds(items); len(items) > 0 {
			handled(ctx, items)
		}
	}
	s.placements = batch.New(cfg, table)
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
		failed := make(chan error, 1)
		go func() { failed <- l.placements.Do(context.Background(), &placing{rejection: &rest.Error{Err: h}}) }()
		select {
		case <-h.entered:
		case err := <-failed:
			panic(fmt.Sprintf("a lane of the placements cannot be held: %v", err))
		}
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
