package order

import (
	"context"

	"github.com/google/uuid"
)

// The statements whose plans or locks tests check, and which benchmarks execute.
var (
	CancelSQL    = cancelSQL
	CancelDueSQL = cancelDueSQL
	PlaceSQL     = placeSQL
	LockSQL      = lockSQL
	PendingSQL   = pendingSQL
	BacklogSQL   = backlogSQL
	LatenessSQL  = latenessSQL
	BookSQL      = bookSQL
	NotBookedSQL = notBookedSQL

	InvariantsSQL = invariantsSQL
)

// NewBookingCollector returns a collector of the orders that are not booked.
var NewBookingCollector = newBookingCollector

// CheckBooking is the check of `doctor`.
func (s *Store) CheckBooking(ctx context.Context) error { return s.checkBooking(ctx) }

// MaxPlacementWait is the time that the first placement in the queue may wait before the service rejects further ones.
const MaxPlacementWait = maxPlacementWait

// MaxUnderWay is the largest number of placements under way at the same time.
const MaxUnderWay = maxUnderWay

// Pause keeps placements in the queue until resume. See [batch.Queue.Pause].
func (s *Service) Pause(isPatient bool) (waiting func() int, resume func()) {
	return s.placements.Pause(isPatient)
}

// PlaceAlone places an order in a transaction of its own, as a service without batches would.
func (s *Service) PlaceAlone(ctx context.Context, customer uuid.UUID, p Placement) (*Order, error) {
	leave, err := s.store.gate.Enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	placement := newPlacing(customer, p)
	if err := s.store.place(ctx, []*placing{placement}, s.placeOptions(), 0); err != nil {
		return nil, err
	}
	return placement.order, placement.rejection
}
