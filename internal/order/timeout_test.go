package order_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
)

// TestCautious: after a statement has waited in vain for a product, the next ones do not wait for it.
func TestCautious(t *testing.T) {
	s := newShop(t)
	customer, held, free := s.customer(t), s.product(t, 10), s.product(t, 10)
	tasks := make([]delay.Task, 2)
	for i, product := range []uuid.UUID{held, free} {
		o := s.place(t, customer, line(product, 1))
		s.expire(t, o.ID)
		tasks[i].ID = o.ID.String()
	}
	defer s.hold(t, `UPDATE products SET name = 'held' WHERE id = $1`, held)()
	var took [2]time.Duration
	for i := range took {
		began := time.Now()
		if _, err := s.CancelDue(t.Context(), tasks); err != nil {
			t.Fatal(err)
		}
		took[i] = time.Since(began)
	}
	if s.available(t, free) != 10 {
		t.Error("the order of a product that nobody holds is not cancelled")
	}
	if took[1] > took[0]/2 {
		t.Errorf("the first batch took %v, the second %v: want much less", took[0], took[1])
	}
}
