package order

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

// heldQueues holds the placements that wait for products which other sessions have locked for long, in a queue for each
// product. Only the first batch of a queue has waited for the lock in a lane, so the placements that follow delay no
// batch.
type heldQueues struct {
	mu        sync.Mutex
	byProduct map[uuid.UUID][]*placing
}

// join puts those placements of a batch into a queue that need a product with a queue, and returns the others.
func (q *heldQueues) join(batch []*placing) []*placing {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.byProduct) == 0 {
		return batch
	}
	return slices.DeleteFunc(slices.Clone(batch), func(p *placing) bool {
		for _, line := range p.Lines {
			if waiting, found := q.byProduct[line.ProductID]; found {
				q.byProduct[line.ProductID] = append(waiting, p)
				return true
			}
		}
		return false
	})
}

// add puts a batch into the queue of its product, and reports whether the queue is new.
func (q *heldQueues) add(h heldBatch) (isNew bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.byProduct == nil {
		q.byProduct = make(map[uuid.UUID][]*placing)
	}
	waiting, found := q.byProduct[h.product]
	q.byProduct[h.product] = append(waiting, h.batch...)
	return !found
}

// take removes the queue of a product, and returns its placements.
func (q *heldQueues) take(product uuid.UUID) []*placing {
	q.mu.Lock()
	defer q.mu.Unlock()
	waiting := q.byProduct[product]
	delete(q.byProduct, product)
	return waiting
}

// placeApart puts batches that wait for rows of other sessions into their queues. It does not wait: each queue has a
// goroutine of its own.
func (s *Service) placeApart(held []heldBatch) {
	for _, h := range held {
		if s.held.add(h) {
			go s.placeQueue(h.product)
		}
	}
}

// placeQueue waits until a product is free, and then places the orders in its queue. The gate bounds how many sessions wait
// in this way.
func (s *Service) placeQueue(product uuid.UUID) {
	ctx, cancel := context.WithTimeout(context.Background(), batchTimeout)
	defer cancel()
	leave, err := s.store.gate.Enter(ctx)
	if err == nil {
		defer leave()
		err = s.store.waitForProduct(ctx, product)
	}
	waiting := s.held.take(product)
	if err != nil {
		reject(waiting, err)
		s.finish(ctx, waiting)
		return
	}
	lockWait := productLockWait
	if product == uuid.Nil { // the placements wait for other rows than products
		lockWait = 0
	}
	for batch := range slices.Chunk(s.rejectExpired(ctx, waiting), maxBatch) {
		held := s.store.placeBatch(ctx, batch, s.terms(), lockWait)
		s.finish(ctx, batch)
		s.placeApart(held)
	}
}

// rejectExpired rejects those placements that have waited for so long that their callers have gone, and returns the others.
func (s *Service) rejectExpired(ctx context.Context, batch []*placing) []*placing {
	var expired, others []*placing
	for _, p := range batch {
		if time.Since(p.arrived) > batchTimeout {
			expired = append(expired, p)
		} else {
			others = append(others, p)
		}
	}
	reject(expired, context.DeadlineExceeded)
	s.finish(ctx, expired)
	return others
}
