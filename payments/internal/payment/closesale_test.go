package payment_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/closesale"
	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
)

// newSales returns the service that closes the sales of a shop.
func newSales(s *shop) *closesale.Service {
	return closesale.NewService(closesale.NewStore(s.gorm), s.orders, prometheus.NewRegistry())
}

// TestCloseSaleWhileHeld checks that the hold follows the deadline, and that the closing begins at the new deadline, or at the end
// of a checkout that was opened shortly before it.
func TestCloseSaleWhileHeld(t *testing.T) {
	s := newMemoryShop(t)
	unpaid, a := s.placeOpen(t)
	paid, b := s.placeOpen(t)
	s.shift(t, unpaid.ID, 10*time.Minute) // so that the next check is minutes away
	s.settle(t, unpaid.ID)
	s.exec(t, `DELETE FROM outbox`) // all tasks are published
	closed, err := newSales(s).CloseSale(t.Context(), s.product)
	testenv.Must(t, err)
	if closed.Orders != 2 {
		t.Fatalf("%d deadlines were moved, want 2", closed.Orders)
	}
	if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM orders o JOIN outbox b ON b.task_id = o.id::text
		WHERE b.kind = 'payment.settle' AND b.due_at = greatest(o.expires_at, o.checkout_until)
			AND o.hold_until = b.due_at + interval '2 min'`); n != 2 {
		t.Error("a settle task is not owed when a checkout closes, or a hold does not end a grace later")
	}
	s.settleNow(t, unpaid.ID)
	s.wantAttempt(t, unpaid, a.ID, "open") // never early
	for _, o := range []*order.Order{unpaid, paid} {
		s.shiftToDeadline(t, o.ID, time.Millisecond)
	}
	s.pay(t, b.CheckoutURL)
	s.settle(t, unpaid.ID)
	s.settle(t, paid.ID)
	s.cancelDue(t, unpaid.ID)
	s.cancelDue(t, paid.ID)
	s.wantAttempt(t, unpaid, a.ID, "closed")
	s.wantOrder(t, unpaid, "cancelled timeout")
	s.wantOrder(t, paid, "paid")
	s.check(t)
}

// TestConcurrentStepsAndCloseSale is TestConcurrentSteps with operators who close the sale of the product.
func TestConcurrentStepsAndCloseSale(t *testing.T) {
	s := newMemoryShop(t)
	sales := newSales(s)
	testConcurrentSteps(t, s, func(ctx context.Context) error {
		_, err := sales.CloseSale(ctx, s.product)
		return err
	})
}
