package order_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// request is a placement of a customer.
type request struct {
	customer uuid.UUID
	order.Placement
}

// result is what Place returned for a request.
type result struct {
	order    *order.Order
	replayed bool
	err      error
}

// batchUnderWay is a batch of placements under way.
type batchUnderWay struct {
	results []result
	done    []chan struct{} // closed when the result is there
}

// wait waits for all results.
func (b *batchUnderWay) wait() []result {
	for _, done := range b.done {
		<-done
	}
	return b.results
}

// queued is the context of a placement. It tells when the placement is in the queue: from then on the caller waits for
// the end of the context, and asks for its channel for the first time.
type queued struct {
	context.Context
	arrived chan struct{} // closed when the placement is in the queue
	once    *sync.Once
}

func newQueued(ctx context.Context) queued { return queued{ctx, make(chan struct{}), new(sync.Once)} }

func (q queued) Done() <-chan struct{} {
	q.once.Do(func() { close(q.arrived) })
	return q.Context.Done()
}

// placeInOneBatch places orders in one batch, in the order of the requests.
func (s *shop) placeInOneBatch(t testing.TB, requests ...request) []result {
	t.Helper()
	return s.startBatch(t, t.Context(), requests...).wait()
}

// startBatch begins to place orders in one batch, in the order of the requests.
func (s *shop) startBatch(t testing.TB, ctx context.Context, requests ...request) *batchUnderWay {
	t.Helper()
	b := &batchUnderWay{make([]result, len(requests)), make([]chan struct{}, len(requests))}
	defer s.lanes.Hold()()
	for i, r := range requests {
		b.done[i] = make(chan struct{})
		placing := newQueued(ctx)
		go func() {
			defer close(b.done[i])
			o, replayed, err := s.Place(placing, r.customer, r.Placement)
			b.results[i] = result{o, replayed, err}
		}()
		select {
		case <-placing.arrived:
		case <-b.done[i]: // rejected without a batch
		}
	}
	return b
}

// String describes the request briefly, with parts of ids.
func (r request) String() string {
	text := r.customer.String()[30:] + " " + r.IdempotencyKey + ":"
	for _, l := range r.Lines {
		text += fmt.Sprintf(" %d of %s", l.Quantity, l.ProductID.String()[:4])
	}
	return text
}

// wants returns a request without an idempotency key.
func wants(customer uuid.UUID, lines ...order.Line) request {
	return request{customer, order.Placement{Lines: lines}}
}

// wantsWithKey returns a request with an idempotency key.
func wantsWithKey(customer uuid.UUID, key string, lines ...order.Line) request {
	return request{customer, order.Placement{IdempotencyKey: key, Lines: lines}}
}

// String returns the code of the rejection, "replayed" or "placed".
func (r result) String() string {
	switch {
	case r.err != nil:
		return parttest.ClassOf(r.err).Code
	case r.replayed:
		return "replayed"
	}
	return "placed"
}

// TestBatchIsOneTransaction checks that a batch without rejections is one transaction: all its orders have one time.
func TestBatchIsOneTransaction(t *testing.T) {
	s := newShop(t)
	a, b := s.Product(t, 1000), s.Product(t, 1000)
	var requests []request
	for i := range int64(200) {
		requests = append(requests, wants(s.Customer(t), line(a, i%3+1), line(b, 1)))
	}
	s.checkPlacedOnce(t, requests, s.placeInOneBatch(t, requests...))
	if n := testenv.Query[int](t, s.DB, `SELECT count(DISTINCT xmin::text) FROM orders`); n != 1 {
		t.Errorf("200 orders were placed in %d transactions, want 1", n)
	}
	tasks := s.awaitPublished(t)
	if n := len(s.Published.Calls()); n != 1 || len(tasks) != 200 {
		t.Errorf("%d tasks were published in %d calls, want 200 in one", len(tasks), n)
	}
}
