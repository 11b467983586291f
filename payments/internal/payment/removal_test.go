package payment_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/payments/internal/provider"
)

// removeOld removes all ended orders, but for those that must stay, and checks which orders are left. It interrupts
// the removal before each of its statements, and begins again.
func (s *shop) removeOld(t *testing.T, left ...*order.Order) {
	t.Helper()
	_, err := s.orderDB.Book(t.Context())
	testenv.Must(t, err)
	const orders, attempts = `SELECT id::text FROM orders`, `SELECT count(*) FROM payment_attempts WHERE order_id IS NOT NULL`
	before := testenv.QueryAll[string](t, s.db, orders)
	of := testenv.Query[int](t, s.db, attempts)
	ordertest.CrashEach(t, s.gorm, s.db, func() error {
		_, err := s.orders.RemoveOld(t.Context(), time.Microsecond)
		return err
	}, func() {
		s.check(t)
		if n := len(testenv.QueryAll[string](t, s.db, orders)); n == len(before) && testenv.Query[int](t, s.db, attempts) != of {
			t.Errorf("a removal that was interrupted has removed no order, and changed the payments of some")
		}
	})
	var want []string
	for _, o := range left {
		want = append(want, o.ID.String())
	}
	slices.Sort(want)
	got := testenv.QueryAll[string](t, s.db, `SELECT id::text FROM orders ORDER BY id`)
	if !slices.Equal(got, want) {
		t.Errorf("the orders %v are left, want %v", got, want)
	}
	s.check(t)
}

// TestRemoveOrdersWithPayments removes old orders with payments. The books stay balanced, and an order of which
// something is owed stays.
func TestRemoveOrdersWithPayments(t *testing.T) {
	t.Parallel()
	s := newBooksShop(t)
	s.paid(t)
	refunded, _, _ := s.latePaid(t) // the refund is checked again after 35 days
	disputed, _, lost := s.paid(t)
	s.book(provider.Disputed, lost, "dp_1", 400)
	failed, failedAttempt := s.late(t)
	s.failRefund(t, failed, failedAttempt)
	abandoned, _ := s.placeOpen(t)
	s.shiftToDeadline(t, abandoned.ID, time.Hour)
	s.cancelDue(t, abandoned.ID)
	s.settle(t, abandoned.ID)
	unanswered, noAnswer := s.placeOpen(t) // the provider may have made a session whose answer was lost, and it may still be open
	s.shiftToDeadline(t, unanswered.ID, time.Hour)
	s.cancelDue(t, unanswered.ID)
	s.settle(t, unanswered.ID)
	s.exec(t, `UPDATE payment_attempts SET session_id = NULL, session_expires_at = now() - interval '30 minutes' WHERE id = $1`, noAnswer.ID)
	live, _ := s.placeOpen(t)
	before := s.read(t)

	s.removeOld(t, refunded, disputed, failed, unanswered, live)
	if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM payment_attempts WHERE removed_order IS NOT NULL AND captured_cents = 1000`); n != 1 {
		t.Errorf("%d payments have outlived their orders, want 1", n)
	}
	if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM payment_attempts`); n != 6 {
		t.Errorf("%d attempts are left, want 6: that of the abandoned order is deleted", n)
	}
	after := s.read(t)
	if b, a := before.Currencies[0], after.Currencies[0]; a.There != b.There || a.Here != b.Here || a.UnclaimedCents != 0 {
		t.Errorf("the books are %+v after the removal, and with %+v before it; want the same", a, b)
	}

	s.exec(t, `UPDATE payment_attempts SET session_expires_at = now() - interval '2 hours' WHERE id = $1`, noAnswer.ID)
	s.exec(t, `UPDATE refunds SET next_check = NULL WHERE state = 'confirmed'`)
	s.exec(t, `UPDATE refunds SET state = 'settled_outside', note = 'cash', actor = 'Ann' WHERE state = 'failed'`)
	s.book(provider.DisputeReversed, lost, "dp_1", 400)
	s.read(t)
	s.removeOld(t, live)
	s.read(t)
}

// TestRefundOfRemovedOrder has the customer's bank return the money of a refund after its order was removed. The
// refund fails as if the order existed, and an operator can send it again.
func TestRefundOfRemovedOrder(t *testing.T) {
	s := newMemoryShop(t)
	o, a := s.late(t)
	s.sendRefund(t, a.ID)
	s.exec(t, `UPDATE refunds SET next_check = NULL`)
	s.removeOld(t)
	s.failAtBank(t, a)
	s.sendRefund(t, a.ID)
	refund := s.refundOf(t, a.ID)
	if state := testenv.Query[string](t, s.db, `SELECT state FROM refunds`); state != "failed" {
		t.Fatalf("the refund is %s, want failed", state)
	}
	if of := testenv.Query[string](t, s.db, `SELECT removed_order::text FROM payment_attempts`); of != o.ID.String() {
		t.Errorf("the payment is that of the removed order %s, want %s", of, o.ID)
	}
	testenv.Must(t, s.refunder.Retry(t.Context(), uuid.MustParse(refund)))
	s.sendRefund(t, a.ID)
	if state := testenv.Query[string](t, s.db, `SELECT state FROM refunds`); state != "confirmed" {
		t.Errorf("the refund is %s after the retry, want confirmed", state)
	}
	s.check(t)
}

// TestArchivePayments runs the statement of the document that archives the payments of old orders.
func TestArchivePayments(t *testing.T) {
	s := newMemoryShop(t)
	o, a := s.late(t)
	s.sendRefund(t, a.ID)
	s.placeOpen(t) // it has not ended
	const document = "../../docs/payments.md"
	if archived := parttest.Copied(t, s.url, document, "2000-01-01"); len(archived) != 1 || len(archived[0]) > 0 {
		t.Errorf("%v is archived of the orders that ended before the year 2000, want one statement without rows", archived)
	}
	rows := parttest.Copied(t, s.url, document, "9999-12-31")[0]
	if len(rows) != 1 || rows[0]["id"] != a.ID.String() || rows[0]["order_id"] != o.ID.String() ||
		rows[0]["captured_cents"] != "1000" {
		t.Fatalf("the payments %v are archived, want %s of the order %s", rows, a.ID, o.ID)
	}
	var refunds []struct {
		ID string `json:"id"`
	}
	testenv.Must(t, json.Unmarshal([]byte(rows[0]["refunds"]), &refunds))
	if len(refunds) != 1 || refunds[0].ID != s.refundOf(t, a.ID) {
		t.Errorf("the refunds %v are archived, want %s", refunds, s.refundOf(t, a.ID))
	}
}

// TestOrderOfPayment finds the order of a late payment by each id of the payment and of its refund.
func TestOrderOfPayment(t *testing.T) {
	s := newMemoryShop(t)
	o, a := s.late(t)
	s.late(t) // of another order
	s.sendRefund(t, a.ID)
	for _, column := range []string{"id::text", "session_id", "payment_intent"} {
		s.wantOrderOf(t, column, testenv.Query[string](t, s.db, `SELECT `+column+` FROM payment_attempts WHERE id = $1`, a.ID), o.ID)
	}
	for _, column := range []string{"id::text", "provider_id"} {
		s.wantOrderOf(t, column, testenv.Query[string](t, s.db, `SELECT `+column+` FROM refunds WHERE attempt_id = $1`, a.ID), o.ID)
	}
	s.wantOrderOf(t, "another id", uuid.NewString(), uuid.Nil)
}

// wantOrderOf checks the order that is found by an id. uuid.Nil means none.
func (s *shop) wantOrderOf(t *testing.T, what, id string, want uuid.UUID) {
	t.Helper()
	rows, err := s.orders.Where(t.Context(), id)
	if err != nil || len(rows) > 0 != (want != uuid.Nil) || len(rows) > 0 && rows[0].ID != want.String() {
		t.Errorf("by the %s %s the orders %+v are found (%v), want %s", what, id, rows, err, want)
	}
}
