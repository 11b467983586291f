package order_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/testenv"
)

// TestHeldProductIsSkipped locks a product for the whole test. The first batch waits for the lock until the
// lock_timeout of the session. The second batch does not wait.
func TestHeldProductIsSkipped(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer, held, free := s.customer(t), s.product(t, 10), s.product(t, 10)
	tasks := make([]delay.Task, 2)
	for i, product := range []uuid.UUID{held, free} {
		o := s.place(t, customer, line(product, 1))
		s.expire(t, o.ID)
		tasks[i].ID = o.ID.String()
	}
	defer testenv.HoldLock(t, s.db, `UPDATE products SET name = 'held' WHERE id = $1`, held)()
	var took [2]time.Duration
	for i := range took {
		began := time.Now()
		if _, err := s.CancelDue(t.Context(), tasks); err != nil {
			t.Fatal(err)
		}
		took[i] = time.Since(began)
	}
	if s.available(t, free) != 10 {
		t.Errorf("%d of the free product available, want 10: its order is not cancelled", s.available(t, free))
	}
	if took[1] > took[0]/2 {
		t.Errorf("the first batch took %v and the second %v, want at most half of that for the second", took[0], took[1])
	}
}
