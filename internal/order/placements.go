package order

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/batch"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/rest"
)

// The bounds of the batches of placements. [batch.Config] says what a larger or smaller value would do.
const (
	// placementLanes is the largest number of batches under way at the same time.
	placementLanes = 2
	// maxBatch is the largest number of placements in a batch. A larger batch would keep the locks of its products for
	// longer; with smaller ones, fewer orders could be placed in a second.
	maxBatch = 200
	// maxPlacementWait is the time that the first placement in the queue may wait before further ones are rejected. So a
	// client gets its order or a rejection within about a second.
	maxPlacementWait = 500 * time.Millisecond
	// maxUnderWay is the largest number of placements under way at the same time. They keep a machine busy for some tenths
	// of a second. More would wait for a processor, and so would the cancellations.
	maxUnderWay = 1000
	// productLockWait is the time that a batch waits for the locks of its products. A session usually keeps them for less
	// time. A longer wait would delay the placements of other products; with a shorter one, a batch would be split
	// more often.
	productLockWait = 200 * time.Millisecond
	// batchTimeout is the time limit for a batch. A shorter one would end statements before the statement_timeout does; with
	// a longer one, a client's request could end before it has an answer.
	batchTimeout = 7 * time.Second
)

// newPlacements returns the queue in which placements wait for their batches.
func (s *Service) newPlacements() *batch.Queue[*placing, uuid.UUID] {
	return batch.New(batch.Config{
		Lanes: placementLanes, Size: maxBatch, MaxWait: maxPlacementWait, MaxUnderWay: maxUnderWay,
		LockWait: productLockWait, Timeout: batchTimeout,
		OnReject: func(reason string) {
			s.log.Warn("placements are rejected, because more arrive than can be placed", "reason", reason,
				"max_wait", maxPlacementWait.String(), "max_under_way", maxUnderWay)
		},
	}, batch.Table[*placing, uuid.UUID]{
		Handle:  s.placeBatch,
		Handled: s.publishTasks,
		Rows:    (*placing).products,
		Locked:  s.store.lockedProducts,
		WaitFor: s.store.waitForProduct,
		Gate:    s.store.gate,
	})
}

// Admit admits a placement. It returns [rest.Overloaded] while earlier placements wait too long for their batches, or too
// many are under way. It costs little: call it when the placement has been read, before anything else is done for it, and
// call done at its end.
func (s *Service) Admit() (done func(), err error) {
	done, err = s.placements.Admit()
	if err != nil {
		s.countRejected(errOverloaded)
		return nil, errOverloaded
	}
	return done, nil
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
	placing.span = s.cfg.Tracer.Span(ctx)
	err = s.placements.Do(ctx, placing) // placeBatch places it
	switch {
	case errors.Is(err, batch.ErrOverloaded):
		return nil, false, errOverloaded
	case err != nil:
		return nil, false, placementUnknown(fmt.Errorf("place order: %w", err))
	case placing.rejection != nil:
		return nil, false, placing.rejection
	case placing.existing != nil:
		o, err = s.existingOrder(ctx, placing)
		return s.withActions(o), *placing.existing != placing.id, placementUnknown(err)
	default:
		return s.withActions(placing.order), false, nil
	}
}

// errOverloaded rejects a placement because more arrive than can be placed: the first one in the queue, or this one, has
// waited too long for its batch, or too many are under way.
var errOverloaded = rest.Overloaded.Errorf(
	"More orders arrive than the shop can place right now. Nothing was ordered: repeat the request in a moment.")

// placementUnknown replaces an error after which the order may or may not have been placed.
func placementUnknown(err error) error {
	return rest.OutcomeUnknown(err, "Repeat the request with the same Idempotency-Key: it then returns the same order. "+
		"Without a key, look at your orders first.")
}

// countRejected counts a placement that was rejected.
func (s *Service) countRejected(err error) {
	s.metrics.rejected.WithLabelValues(rest.AsError(err).Class.Code).Inc()
}

// placeBatch is the Handle of [batch.Table]: it places a batch, and returns those placements that are not decided after
// an error.
func (s *Service) placeBatch(
	ctx context.Context, placings []*placing, lockWait time.Duration,
) (left []*placing, err error) {
	ctx, end := s.cfg.Tracer.StartPlacing(ctx, spansOf(placings))
	defer func() { end(err) }()
	err = s.store.place(ctx, placings, s.placeOptions(), lockWait)
	if err == nil {
		s.metrics.batchSize.Observe(float64(len(placings)))
	}
	for _, p := range placings {
		if o := p.order; o != nil {
			s.Notify(o.CustomerID.String(), o.ID.String())
			s.cfg.Placed(o.ID.String(), o.ExpiresAt.Sub(o.ServerTime))
		}
	}
	return undecided(placings), err
}

func (s *Service) placeOptions() placeOptions {
	return placeOptions{timeout: s.cfg.Timeout, maxOpen: s.cfg.MaxOpenOrders, maxUnits: s.cfg.MaxOpenUnits}
}

// publishTasks is the Handled of [batch.Table]: it publishes the tasks of the orders that a batch has placed. The callers
// of Place do not wait for Redis: the orders and the outbox rows of their tasks are committed.
func (s *Service) publishTasks(ctx context.Context, placings []*placing) {
	var msgs []delay.Message
	for _, p := range placings {
		if p.order != nil {
			msgs = append(msgs, p.task)
		}
	}
	if len(msgs) > 0 {
		s.pub.Publish(ctx, msgs...)
	}
}

// existingOrder returns the order that exists for a placement already. It returns an error if another placement has used
// the idempotency key.
func (s *Service) existingOrder(ctx context.Context, p *placing) (*Order, error) {
	fingerprint, err := s.store.fingerprint(ctx, *p.existing)
	if err != nil {
		return nil, err
	}
	if p.IdempotencyKey != "" && !bytes.Equal(fingerprint, p.fingerprint()) {
		return nil, rest.KeyReused.Errorf("The Idempotency-Key belongs to order %s, which has other lines.", p.existing)
	}
	return s.store.get(ctx, *p.existing, p.customer)
}
