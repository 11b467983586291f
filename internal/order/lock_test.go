package order_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
)

// TestLockedProductDelaysNoOtherOrders locks one product. Meanwhile the overdue orders without this product are
// cancelled.
func TestLockedProductDelaysNoOtherOrders(t *testing.T) {
	for name, cancel := range map[string]func(*shop, []delay.Task) error{
		"worker": func(s *shop, tasks []delay.Task) error {
			_, err := s.CancelDue(t.Context(), tasks)
			return err
		},
		"reconciler": func(s *shop, _ []delay.Task) error {
			_, err := s.timeOut(t.Context(), 0, 1000)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t)
			customer, held, free := s.customer(t), s.product(t, 10), s.product(t, 10)
			var tasks []delay.Task
			for _, lines := range [][]order.Line{{line(held, 1)}, {line(free, 2)}, {line(free, 3), line(held, 1)}, {line(free, 4)}} {
				o := s.place(t, customer, lines...)
				s.expire(t, o.ID)
				tasks = append(tasks, delay.Task{ID: o.ID.String()})
			}
			release := testenv.HoldLock(t, s.db, `UPDATE products SET name = 'held' WHERE id = $1`, held)
			if err := cancel(s, tasks); err != nil {
				t.Fatal(err)
			}
			if h, f := s.available(t, held), s.available(t, free); h != 8 || f != 7 {
				t.Errorf("%d of the locked product available, want 8; %d of the other, want 7", h, f)
			}
			release()
			if err := cancel(s, tasks); err != nil {
				t.Fatal(err)
			}
			s.checkInvariants(t, 0)
			if h, f := s.available(t, held), s.available(t, free); h != 10 || f != 10 {
				t.Errorf("after the lock is released: %d and %d available, want 10 and 10", h, f)
			}
		})
	}
}

// TestLockedProductLeavesConnections places more orders of a locked product than the pool has connections. Other
// requests still get a connection.
func TestLockedProductLeavesConnections(t *testing.T) {
	s := newShop(t)
	customer, product := s.customer(t), s.product(t, 100)
	release := testenv.HoldLock(t, s.db, `UPDATE products SET name = 'held' WHERE id = $1`, product)
	ctx, cancel := context.WithCancel(t.Context())
	var ended atomic.Int64
	var wg sync.WaitGroup
	for range 3 * s.db.Stats().MaxOpenConnections {
		wg.Go(func() {
			_, _, _ = s.Place(ctx, customer, order.Placement{Lines: []order.Line{line(product, 1)}})
			ended.Add(1)
		})
	}
	testenv.AwaitLockWait(t, s.db)
	if _, err := s.Products(t.Context()); err != nil {
		t.Error(err)
	}
	if n := ended.Load(); n > 0 {
		t.Errorf("%d orders of the locked product ended before another request was served, want 0", n)
	}
	cancel()
	release()
	wg.Wait()
	s.checkInvariants(t, 0)
}

// TestDeadlineExtendedDuringLockWait has a customer pay or cancel an order whose deadline has passed when the statement
// begins. The holder of the row's lock moves the deadline into the future.
func TestDeadlineExtendedDuringLockWait(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(s *shop, customer, id uuid.UUID) (*order.Order, error){
		"pay": func(s *shop, customer, id uuid.UUID) (*order.Order, error) { return s.Pay(t.Context(), customer, id) },
		"cancel": func(s *shop, customer, id uuid.UUID) (*order.Order, error) {
			return s.Cancel(t.Context(), customer, id)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t)
			customer, product := s.customer(t), s.product(t, 1)
			o := s.place(t, customer, line(product, 1))
			s.expire(t, o.ID)
			release := testenv.HoldLock(t, s.db, `UPDATE orders SET expires_at = now() + interval '1 hour' WHERE id = $1`, o.ID)
			done := make(chan error, 1)
			go func() {
				_, err := do(s, customer, o.ID)
				done <- err
			}()
			testenv.AwaitLockWait(t, s.db)
			release()
			if err := <-done; err != nil {
				t.Errorf("%s returns %v, want no error", name, err)
			}
			s.checkInvariants(t, 0)
		})
	}
}
