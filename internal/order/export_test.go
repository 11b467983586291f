package order

import (
	"context"
)

// The statements whose plans or locks tests check, and which benchmarks execute.
var (
	CancelSQL    = cancelSQL + orderSQL
	ListSQL      = listSQL + orderSQL + listOrder
	CancelDueSQL = cancelDueSQL
	PlaceSQL     = placeStatement
	PlaceNames   = placeNames
	LockSQL      = lockSQL
	PendingSQL   = pendingSQL
	BacklogSQL   = backlogSQL
	LatenessSQL  = latenessSQL
	WhereSQL     = whereSQL
	BookSQL      = bookSQL
	NotBookedSQL = notBookedSQL

	InvariantsSQL = invariantsSQL
)

// NewBookingGauge returns the gauge of the oldest order that is not booked.
var NewBookingGauge = newBookingGauge

// CheckBooking is the check of `doctor`.
func (s *Store) CheckBooking(ctx context.Context) error { return s.checkBooking(ctx) }

// MaxPlacementWait is the time that the first placement in the queue may wait before the service rejects further ones.
const MaxPlacementWait = maxPlacementWait

// Pause keeps placements in the queue until resume. See [batch.Queue.Pause].
func (s *Service) Pause(isPatient bool) (waiting func() int, resume func()) {
	return s.placements.Pause(isPatient)
}
