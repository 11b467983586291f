package order

import (
	"context"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/rest"
)

// Placements that arrive while others are being placed are placed together: a batch costs PostgreSQL little more than
// one order does, because it starts one transaction and syncs the log once.
const (
	// With two batches under way, one is executed while the log is synced for the other. More would be smaller, and would
	// wait for each other at a product that all customers want.
	placementLanes = 2
	// maxBatch limits the time for which a batch locks its products.
	maxBatch = 200
	// maxPlacementWait is the wait for a batch at which the service begins to reject placements. So a client gets its order
	// or a rejection within about a second.
	maxPlacementWait = 500 * time.Millisecond
	// maxUnderWay is the most placements that are under way at the same time. All of them together keep a machine busy for
	// some tenths of a second. With more, they would wait for a processor, and so would the cancellations.
	maxUnderWay = 1000
	// productLockWait is longer than sessions usually hold the lock of a product.
	productLockWait = 200 * time.Millisecond
	// batchTimeout is longer than the statement_timeout, and shorter than the time that a client has for its request.
	batchTimeout = 7 * time.Second
	// overloadLogInterval is the shortest time between two lines of the log about rejected placements.
	overloadLogInterval = 10 * time.Second
)

func (s *Service) newPlacements() *group[*placing] {
	return &group[*placing]{run: s.placeBatch, lanes: placementLanes, size: maxBatch, maxWait: maxPlacementWait}
}

// Place places an order: it reserves the stock, and the time to pay begins. If the customer has placed an order with
// the same idempotency key before, Place returns that order in its present state, and replayed is true.
func (s *Service) Place(ctx context.Context, customer uuid.UUID, p Placement) (o *Order, replayed bool, err error) {
	o, replayed, err = s.place(ctx, customer, p)
	switch {
	case err != nil:
		s.countRejected(err)
	case replayed:
		s.metrics.replayed.Inc()
	default:
		s.metrics.placed.Inc()
	}
	return o, replayed, err
}

func (s *Service) place(ctx context.Context, customer uuid.UUID, p Placement) (o *Order, replayed bool, err error) {
	if errs := p.fieldErrors(); len(errs) > 0 {
		return nil, false, rest.InvalidFields(errs...)
	}
	placing := newPlacing(customer, p)
	if !s.placements.add(placing) {
		return nil, false, errOverloaded
	}
	select {
	case <-placing.decided:
	case <-ctx.Done():
		if s.placements.remove(placing) {
			return nil, false, errOverloaded
		}
		return nil, false, placementUnknown(ctx.Err())
	}
	switch {
	case placing.err != nil:
		return nil, false, placementUnknown(placing.err)
	case placing.before != nil:
		o, err = s.store.placedBefore(ctx, placing)
		return s.withExtension(o), *placing.before != placing.id, placementUnknown(err)
	default:
		return s.withExtension(placing.order), false, nil
	}
}

// errOverloaded rejects a placement that would wait, or has waited, too long for its batch.
var errOverloaded = rest.Overloaded.Errorf(
	"More orders arrive than the shop can place right now. Nothing was ordered: repeat the request in a moment.")

// Admit admits a placement. It returns [rest.Overloaded] while earlier placements wait too long for their batches, or too
// many are under way. It costs little: call it before anything else is done for a placement, and call done at its end.
func (s *Service) Admit() (done func(), err error) {
	if s.underWay.Add(1) > maxUnderWay || s.placements.overloaded() {
		s.underWay.Add(-1)
		s.countRejected(errOverloaded)
		return nil, errOverloaded
	}
	return func() { s.underWay.Add(-1) }, nil
}

// countRejected counts a placement that was rejected.
func (s *Service) countRejected(err error) {
	kind := rest.AsError(err).Kind
	s.metrics.rejected.WithLabelValues(kind.Code).Inc()
	if kind == rest.Overloaded && s.overloadLog.CompareAndSwap(false, true) {
		s.log.Warn("placements are rejected, because they would wait too long for their batch", "max_wait", maxPlacementWait.String())
		time.AfterFunc(overloadLogInterval, func() { s.overloadLog.Store(false) })
	}
}

// placementUnknown replaces an error after which the order may or may not have been placed.
func placementUnknown(err error) error {
	return rest.OutcomeUnknown(err, "Repeat the request with the same Idempotency-Key: it then returns the same order. "+
		"Without a key, look at your orders first.")
}

// placeBatch places a batch, and publishes the tasks of its orders. Placements that wait for a product which another session
// has locked for long do not delay the next batch.
func (s *Service) placeBatch(batch []*placing) {
	if batch = s.held.join(batch); len(batch) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), batchTimeout)
	defer cancel()
	s.metrics.batchSize.Observe(float64(len(batch)))
	held := s.store.placeBatch(ctx, batch, s.terms(), productLockWait)
	s.finish(ctx, batch)
	s.placeApart(held)
}

func (s *Service) terms() terms {
	return terms{timeout: s.cfg.Timeout, maxOpen: s.cfg.MaxOpenOrders, maxUnits: s.cfg.MaxOpenUnits}
}

// finish passes the decisions on a batch to the callers, and publishes the tasks of its orders. The callers do not wait for
// Redis: the orders and the tasks are committed.
func (s *Service) finish(ctx context.Context, batch []*placing) {
	var msgs []delay.Message
	for _, p := range batch {
		if o := p.order; o != nil {
			msgs = append(msgs, delay.At(o.ID.String(), o.DueAt, o.ServerTime))
			s.Notify(o.CustomerID.String(), o.ID.String())
			if s.reminders != nil {
				s.reminders.Add(o.ID.String(), o.ExpiresAt.Sub(o.ServerTime)-s.reminderLead())
			}
		}
		if p.isDecided() {
			close(p.decided)
		}
	}
	if len(msgs) > 0 {
		s.pub.Publish(ctx, msgs...)
	}
}
