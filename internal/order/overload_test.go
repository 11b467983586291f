package order_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// TestOverload has as many placements wait as the service takes. Further ones are rejected at once, before
// authentication. All other requests are served. When the queue moves, placements are accepted again.
func TestOverload(t *testing.T) {
	s := newHTTPShop(t)
	lanes := order.LanesOf(s.Service)
	customer, product := s.Customer(t), s.Product(t, 50)
	auth := "Authorization: Bearer " + s.token(t, customer)
	paid, cancelled := s.MustPlace(t, customer, line(product, 1)), s.MustPlace(t, customer, line(product, 1))
	if err := s.Admit(); err != nil {
		t.Fatalf("Admit returns %v for an idle service, want no error", err)
	}

	release := lanes.Hold()
	var waiting sync.WaitGroup
	unknown := order.Placement{Lines: []order.Line{line(uuid.New(), 1)}}
	filled := 0
	for ; s.Admit() == nil; filled++ {
		placing := newQueued(t.Context())
		waiting.Go(func() {
			if _, _, err := s.Place(placing, customer, unknown); parttest.ClassOf(err) != order.UnknownProduct {
				t.Errorf("a placement that waits returns %v, want code %s", err, order.UnknownProduct.Code)
			}
		})
		<-placing.arrived
	}
	if filled != 1000 {
		t.Errorf("%d placements wait, want 1000", filled)
	}
	counted := parttest.Metrics(t, s.Metrics)["orders_rejected_total overloaded"]
	if _, _, err := s.Place(t.Context(), customer, unknown); parttest.ClassOf(err) != rest.Overloaded {
		t.Errorf("Place returns %v, want code %s", err, rest.Overloaded.Code)
	}
	for _, headers := range [][]string{nil, {auth}, {"Authorization: Bearer wrong"}} {
		a := s.rejects(t, rest.Overloaded, "POST /api/orders", orderBody(product, 1), headers...)
		if a.Header().Get("Retry-After") != "1" {
			t.Errorf("an order with headers %v is answered with %v, want Retry-After: 1", headers, a.Header())
		}
	}
	if got := parttest.Metrics(t, s.Metrics)["orders_rejected_total overloaded"] - counted; got != 4 {
		t.Errorf("4 rejected placements are counted as %v", got)
	}
	for _, request := range []string{
		"POST /api/orders/" + paid.ID.String() + "/pay", "POST /api/orders/" + cancelled.ID.String() + "/cancel",
		"GET /api/orders", "GET /api/products",
	} {
		s.sends(t, 200, request, "", auth)
	}

	release()
	waiting.Wait()
	s.sends(t, 201, "POST /api/orders", orderBody(product, 1), auth)
	if n := testenv.Query[int](t, s.DB, `SELECT count(*) FROM orders`); n != 3 {
		t.Errorf("there are %d orders, want 3: two before the overload, and one after it", n)
	}
	s.CheckInvariants(t, 0)
}

// TestContextEndsDuringBatch ends the context of a caller whose placement is in a batch. The caller learns that the
// outcome is unknown, and gets the order when it repeats the placement.
func TestContextEndsDuringBatch(t *testing.T) {
	s := newShop(t)
	customer, product := s.Customer(t), s.Product(t, 50)
	release := testenv.HoldLock(t, s.DB, `UPDATE products SET name = 'locked' WHERE id = $1`, product)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := order.Placement{IdempotencyKey: "key", Lines: []order.Line{line(product, 1)}}
	result := async(func() error { _, _, err := s.Place(ctx, customer, p); return err })
	testenv.AwaitLockWait(t, s.DB)
	cancel()
	if err := <-result; parttest.ClassOf(err) != rest.Unavailable || !strings.Contains(err.Error(), "may or may not") {
		t.Errorf("Place returns %v, want code %s, and that the outcome is unknown", err, rest.Unavailable.Code)
	}
	release()
	testenv.Eventually(t, "the order",
		func() bool { return testenv.Query[int](t, s.DB, `SELECT count(*) FROM orders`) == 1 })
	if _, replayed, err := s.Place(t.Context(), customer, p); err != nil || !replayed {
		t.Errorf("the repeated Place returns replayed %v, %v; want a replay", replayed, err)
	}
	s.CheckInvariants(t, 0)
}
