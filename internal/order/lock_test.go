package order_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
)

// TestLockedProductLeavesConnections cancels more orders of a locked product than the pool has connections. Nobody has
// to wait for a connection. Placements have few lanes, so that they cannot take all connections.
func TestLockedProductLeavesConnections(t *testing.T) {
	s := newShop(t)
	customer, product := s.Customer(t), s.Product(t, 1000)
	ids := make([]uuid.UUID, 3*s.DB.Stats().MaxOpenConnections)
	for i := range ids {
		ids[i] = s.MustPlace(t, customer, line(product, 1)).ID
	}
	release := testenv.HoldLock(t, s.DB, `UPDATE products SET name = 'locked' WHERE id = $1`, product)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() { _, _ = s.Cancel(ctx, customer, id) })
	}
	testenv.AwaitLockWait(t, s.DB)
	_, err := s.Products(t.Context())
	testenv.Must(t, err)
	cancel()
	release()
	wg.Wait()
	if n := s.DB.Stats().WaitCount; n > 0 {
		t.Errorf("%d requests have waited for a connection, want none", n)
	}
	s.CheckInvariants(t, 0)
}

// TestProductsAreLockedInIDOrder locks one of two products, and runs each statement that locks both. A statement that
// waits for the product with the higher id must have locked the other one.
func TestProductsAreLockedInIDOrder(t *testing.T) {
	s := newShop(t)
	customer, high, low := s.Customer(t), s.Product(t, 10), s.Product(t, 10)
	for bytes.Compare(low[:], high[:]) > 0 {
		low = s.Product(t, 10)
	}
	place := func() uuid.UUID { return s.MustPlace(t, customer, line(high, 1), line(low, 1)).ID }
	due, pending := place(), place()
	s.Expire(t, due)
	for name, test := range map[string]struct {
		statement string
		args      []any
	}{
		"place":    {order.LockSQL, []any{[]uuid.UUID{high, low}}},
		"cancel":   {order.ReturnStockSQL, []any{pending}},
		"time out": {strings.Replace(order.CancelDueSQL, "'500'", "'0'", 1), []any{[]uuid.UUID{due}, "worker"}},
	} {
		t.Run(name, func(t *testing.T) {
			release := testenv.HoldLock(t, s.DB, `SELECT FROM products WHERE id = $1 FOR UPDATE`, high)
			tx, err := s.DB.BeginTx(t.Context(), nil)
			testenv.Must(t, err)
			if _, err := tx.ExecContext(t.Context(), `SET LOCAL lock_timeout = 0`); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() {
				_, err := tx.ExecContext(t.Context(), test.statement, test.args...)
				ended <- errors.Join(err, tx.Rollback())
			}()
			testenv.AwaitLockWait(t, s.DB)
			if testenv.Query[bool](t, s.DB,
				`SELECT EXISTS (SELECT FROM products WHERE id = $1 FOR UPDATE SKIP LOCKED)`, low) {
				t.Error("the statement waits for the product with the higher id, and has not locked the other one")
			}
			release()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOrdersOfALockedProductWait times out a batch while another session has locked a product. Its orders wait, and the
// others are cancelled. Neither such a batch nor one of placements waits for the lock for longer than half a second.
func TestOrdersOfALockedProductWait(t *testing.T) {
	s := newShop(t)
	const waitMs = `1000 * extract(epoch FROM current_setting('lock_timeout')::interval)`
	s.Exec(t, `ALTER TABLE orders ADD wait_ms int DEFAULT `+waitMs)
	customer, locked, free := s.Customer(t), s.Product(t, 10), s.Product(t, 10)
	place := func(lines ...order.Line) uuid.UUID {
		id := s.MustPlace(t, customer, lines...).ID
		s.Expire(t, id)
		return id
	}
	ofLocked, ofFree, ofBoth := place(line(locked, 1)), place(line(free, 1)), place(line(free, 1), line(locked, 1))
	release := testenv.HoldLock(t, s.DB, `SELECT FROM products WHERE id = $1 FOR UPDATE`, locked)
	outcomes := s.Deliver(t, ofLocked, ofFree, ofBoth)
	for i, id := range []uuid.UUID{ofLocked, ofBoth} {
		if _, waits := outcomes[2*i].Retry(); !waits || s.Status(t, id) != "pending" {
			t.Errorf("an order of the locked product is %s, and its outcome %+v; want it to wait",
				s.Status(t, id), outcomes[2*i])
		}
	}
	if outcomes[1] != delay.Done() || s.Status(t, ofFree) != "cancelled timeout" {
		t.Errorf("the order of the free product is %s, and its outcome %+v; want it cancelled",
			s.Status(t, ofFree), outcomes[1])
	}
	release()

	tx, err := s.DB.BeginTx(t.Context(), nil)
	testenv.Must(t, err)
	_, err = tx.ExecContext(t.Context(), order.CancelDueSQL, []uuid.UUID{ofLocked}, "worker")
	testenv.Must(t, err)
	var placing, ending int
	err = tx.QueryRowContext(t.Context(), `SELECT max(wait_ms), (`+waitMs+`)::int FROM orders`).Scan(&placing, &ending)
	testenv.Must(t, errors.Join(err, tx.Commit()))
	if placing > 500 || ending > 500 {
		t.Errorf("placements wait for a lock for %d ms, and timeouts for %d; want at most 500", placing, ending)
	}
}

// TestProductLocksAllowNewItems keeps the lock that the insertion of an order's items takes on their product. It
// delays no statement that changes the stock.
func TestProductLocksAllowNewItems(t *testing.T) {
	s := newShop(t)
	customer, product := s.Customer(t), s.Product(t, 10)
	place := func() uuid.UUID { return s.MustPlace(t, customer, line(product, 1)).ID }
	due, pending := place(), place()
	s.Expire(t, due)
	testenv.HoldLock(t, s.DB, `SELECT FROM products WHERE id = $1 FOR KEY SHARE`, product)
	place()
	if _, err := s.Cancel(t.Context(), customer, pending); err != nil {
		t.Errorf("cancel: %v", err)
	}
	if outcome := s.Deliver(t, due)[0]; outcome != delay.Done() {
		t.Errorf("the timeout returns %+v, want done", outcome)
	}
	s.CheckInvariants(t, 0)
}
