package order_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/testenv"
)

// TestTimeoutSeesMovedOrder moves an order between the moment of the snapshot of the worker's statement and the moment
// when it locks the order.
func TestTimeoutSeesMovedOrder(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for name, test := range map[string]struct{ setup, change, status string }{
		"extended": {"pass 31m", `UPDATE orders SET expires_at = now() + interval '1 h' WHERE id = $1`,
			"pending"},
		"held": {"pass 31m", `UPDATE orders SET hold_until = now() + interval '1 h' WHERE id = $1`,
			"pending"},
		"held, the hold is over": {"pass 31m", `UPDATE orders SET hold_until = now() - interval '1 s' WHERE id = $1`,
			"cancelled timeout"},
		"released": {"hold, pass 36m", `UPDATE orders SET hold_until = NULL WHERE id = $1`,
			"cancelled timeout"},
		"moved earlier": {"hold, pass 36m",
			`UPDATE orders SET expires_at = created_at + interval '1 s', hold_until = created_at + interval '2 s'
				WHERE id = $1`, "cancelled timeout"},
		"moved back": {"pass 31m",
			`UPDATE orders SET expires_at = created_at + interval '1 s' WHERE id = $1`, "cancelled timeout"},
		"paid": {"pass 31m",
			`UPDATE orders SET status = 'paid', paid_at = created_at, ended_by = 'customer' WHERE id = $1`, "paid"},
	} {
		t.Run(name, func(t *testing.T) {
			customer, id := s.pending(t)
			s.Do(t, test.setup, customer, id)
			// The statement has its snapshot when it waits for the advisory lock, which the test adds to it.
			const lock = `pg_advisory_xact_lock(1)`
			const condition = `WHERE id = ANY ($1::uuid[]) AND CASE status`
			statement := strings.Replace(order.CancelDueSQL, condition,
				`WHERE (SELECT `+lock+`) IS NOT NULL AND `+strings.TrimPrefix(condition, "WHERE "), 1)
			if statement == order.CancelDueSQL {
				t.Fatalf("cancel_due.sql has no line %q", condition)
			}
			release := testenv.HoldLock(t, s.DB, `SELECT `+lock)
			done := async(func() error {
				_, err := s.DB.ExecContext(t.Context(), statement, []uuid.UUID{id}, "worker")
				return err
			})
			testenv.AwaitLockWait(t, s.DB)
			s.Exec(t, test.change, id)
			release()
			if err := <-done; err != nil {
				t.Errorf("the statement fails: %v", err)
			}
			if got := s.Status(t, id); got != test.status {
				t.Errorf("the order is %s, want %s", got, test.status)
			}
		})
	}
}

// TestHeldOrderIsNotCancelledBeforeItsHoldEnds delivers the task of a held order at the deadline, and then at the end
// of the hold.
func TestHeldOrderIsNotCancelledBeforeItsHoldEnds(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer, id := s.pending(t)
	s.Hold(t, id)
	s.Pass(t, id, timeout)
	if left, ok := s.Deliver(t, id)[0].Retry(); !ok || !ordertest.Near(left, holdTime) {
		t.Errorf("at the deadline the task is due again in %v (%v), want about %v", left, ok, holdTime)
	}
	if page, _, err := s.Pending(t.Context(), keyset.Cursor{}, time.Minute, 10); len(page) > 0 || err != nil {
		t.Errorf("%d orders are due within a minute, %v; want none", len(page), err)
	}
	s.Pass(t, id, holdTime)
	if n, err := s.timeOut(t.Context(), 0, 10); n != 1 || err != nil {
		t.Errorf("at the end of the hold %d orders time out, %v; want 1", n, err)
	}
	o, err := s.Get(t.Context(), customer, id)
	if err != nil || o.CancelReason != order.ByTimeout || o.CancelledAt.Before(*o.HoldUntil) ||
		!o.DueAt.Equal(*o.HoldUntil) {
		t.Errorf("the order is %+v, %v; want it timed out at the end of its hold", o, err)
	}
	late := testenv.Query[float64](t, s.DB,
		`SELECT (figure->'reconciler'->>'max_seconds')::float8 FROM (`+order.LatenessSQL+`) AS figures (figure)`)
	if late >= holdTime.Seconds() {
		t.Errorf("the figure of the lateness is %v s, want it counted from the end of the hold", late)
	}
	s.CheckInvariants(t, 0)
}
