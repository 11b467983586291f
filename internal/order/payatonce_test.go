package order_test

import (
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
)

// TestPayAtOnceIsOffered checks which orders the service offers to pay at once: those that Pay would pay now.
func TestPayAtOnceIsOffered(t *testing.T) {
	s := newHTTPShop(t)
	closed := newShop(t, func(c *order.Config) { c.NoPayAtOnce = true })
	for name, test := range map[string]struct {
		shop *shop
		do   func(customer, id uuid.UUID)
		want bool
	}{
		"pending":         {s.shop, func(uuid.UUID, uuid.UUID) {}, true},
		"without a route": {closed, func(uuid.UUID, uuid.UUID) {}, false},
		"held":            {s.shop, func(_, id uuid.UUID) { s.Hold(t, id) }, false},
		"released":        {s.shop, func(_, id uuid.UUID) { s.Hold(t, id); s.Release(t, id) }, true},
		"late":            {s.shop, func(_, id uuid.UUID) { s.Pass(t, id, timeout) }, false},
		"extended": {s.shop, func(customer, id uuid.UUID) {
			if o, err := s.Extend(t.Context(), customer, id); err != nil || !o.PayAtOnce {
				t.Errorf("Extend returns %+v, %v; want an order that can be paid at once", o, err)
			}
		}, true},
		"paid": {s.shop, func(customer, id uuid.UUID) {
			if o, err := s.Pay(t.Context(), customer, id); err != nil || o.PayAtOnce {
				t.Errorf("Pay returns %+v, %v; want an order that cannot be paid again", o, err)
			}
		}, false},
		"cancelled": {s.shop, func(customer, id uuid.UUID) {
			if o, err := s.Cancel(t.Context(), customer, id); err != nil || o.PayAtOnce {
				t.Errorf("Cancel returns %+v, %v; want an order that cannot be paid", o, err)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			customer, product := test.shop.Customer(t), test.shop.Product(t, 1)
			id := test.shop.MustPlace(t, customer, line(product, 1)).ID
			test.do(customer, id)
			o, err := test.shop.Get(t.Context(), customer, id)
			if err != nil || o.PayAtOnce != test.want {
				t.Errorf("the order is %+v, %v; want pay_at_once %v", o, err, test.want)
			}
			test.shop.Deliver(t, id) // cancels the late order
		})
	}
	s.CheckInvariants(t, 0)
}
