package order_test

import (
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// TestChangesAreToldOnce checks that each change of an order is counted once, and that it notifies the pages of its
// customer once. A repeated request does neither.
func TestChangesAreToldOnce(t *testing.T) {
	s := newShop(t)
	customer, product := s.Customer(t), s.Product(t, 10)
	for range 2 {
		if _, _, err := s.Place(t.Context(), customer, order.Placement{IdempotencyKey: "k",
			Lines: []order.Line{line(product, 1)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.try(t, customer, line(product, 11)); err == nil {
		t.Fatal("Place accepts an order of 11 units of a product with 9 available, want an error")
	}
	place := func() *order.Order { return s.MustPlace(t, customer, line(product, 1)) }
	paid, cancelled, late, repaired := place(), place(), place(), place()
	for range 2 {
		s.Do(t, "pay", customer, paid.ID)
		s.Do(t, "cancel", customer, cancelled.ID)
	}
	s.Expire(t, late.ID)
	for range 2 {
		s.Deliver(t, late.ID, paid.ID, repaired.ID, uuid.New())
	}
	s.Expire(t, repaired.ID)
	for range 2 {
		_, err := s.timeOut(t.Context(), 0, 10)
		testenv.Must(t, err)
	}

	got := parttest.Metrics(t, s.Metrics)
	for name, want := range map[string]float64{
		"orders_placed_total": 5, "orders_rejected_total out-of-stock": 1, "orders_paid_total": 1,
		"orders_cancelled_total customer": 1, "orders_cancelled_total timeout": 2,
		"order_cancel_lateness_seconds worker": 1, "order_cancel_lateness_seconds reconciler": 1,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	for _, o := range []*order.Order{paid, cancelled, late, repaired} {
		if n := s.Notified.Of(customer, o.ID); n != 2 {
			t.Errorf("%d notifications for the order %+v, want 2: one for its placement, one for its end", n, o)
		}
	}
}
