package payment_test

import (
	"strings"
	"testing"
	"time"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/testenv"
	"example.com/shop/payments/internal/payment"
)

// age makes the payments of removed orders, and all movements in the books and the tables, older than the time for which they are kept.
func (s *booksShop) age(t *testing.T) {
	t.Helper()
	s.exec(t, `UPDATE payment_attempts SET ended_at = ended_at - interval '731 days' WHERE order_id IS NULL`)
	s.exec(t, `UPDATE provider_movements SET at = at - interval '731 days'`)
	s.mem.mu.Lock()
	defer s.mem.mu.Unlock()
	for i := range s.mem.ledger {
		s.mem.ledger[i].At = s.mem.ledger[i].At.AddDate(0, 0, -731)
	}
}

// deleteOld deletes the old payments, two at a time. It interrupts the deletion before each of its statements, and begins again.
func (s *booksShop) deleteOld(t *testing.T) {
	t.Helper()
	ordertest.CrashEach(t, s.gorm, s.db, func() error {
		_, err := payment.DeleteOldPayments(t.Context(), s.store, 2)
		return err
	}, func() { s.read(t) })
}

// TestDeleteOldPayments deletes the payments of removed orders. Before, after, and after each interruption the books have the same
// sums, and so they do when a new payment follows. A payment of which something may still move stays.
func TestDeleteOldPayments(t *testing.T) {
	t.Parallel()
	s := newBooksShop(t)
	s.paid(t)
	s.latePaid(t)
	_, _, byHand := s.paid(t)
	s.book(payment.Refunded, byHand, "re_by_hand", 300)
	_, stays, disputed := s.paid(t)
	_, moved, intent := s.paid(t)
	_, failed, _ := s.paid(t)
	_, other, more := s.paid(t)
	s.book(payment.Captured, more, "ch_more", 1)
	s.exec(t, `UPDATE refunds SET next_check = NULL`)
	s.read(t)
	s.removeOld(t)
	s.deleteOld(t) // none is old
	if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM payment_attempts`); n != 7 {
		t.Fatalf("%d payments outlive their orders, want 7", n)
	}

	s.age(t)
	s.book(payment.Disputed, disputed, "dp_1", 400)
	s.book(payment.Refunded, intent, "re_new", 100)
	s.exec(t, `INSERT INTO refunds (id, attempt_id, reason, amount_cents, state, created_at, ended_at)
		VALUES ($1, $2, 'late', 100, 'failed', now(), now())`, keyset.NewID(), failed.ID)
	before := s.read(t).Currencies[0]
	for unread, read := range map[string]string{
		`position = position - interval '10 days'`: `position = position + interval '10 days'`,
		`report = report - 100`:                    `report = report + 100`,
	} {
		s.exec(t, `UPDATE payment_books SET `+unread)
		if n, err := payment.DeleteOldPayments(t.Context(), s.store, 2); n != 0 || err != nil {
			t.Errorf("with the books at %s, %d payments are deleted (error: %v), want 0", unread, n, err)
		}
		s.exec(t, `UPDATE payment_books SET `+read)
	}
	s.deleteOld(t)
	left := strings.Join(testenv.QueryAll[string](t, s.db, `SELECT id::text FROM payment_attempts ORDER BY id`), " ")
	want := strings.Join([]string{stays.ID.String(), moved.ID.String(), failed.ID.String(), other.ID.String()}, " ")
	if left != want {
		t.Errorf("the payments %s are left, want %s", left, want)
	}
	if n := testenv.Query[int](t, s.db, `SELECT payments FROM deleted_payments`); n != 3 {
		t.Errorf("%d payments count as deleted, want 3", n)
	}
	after := s.read(t).Currencies[0]
	if after.There.ClosingCents != before.There.ClosingCents || after.Here.ClosingCents != before.Here.ClosingCents ||
		after.DifferenceCount != before.DifferenceCount {
		t.Errorf("the books close with %+v after the deletion, and with %+v before it; want the same", after, before)
	}
	if after.UnclaimedCents != 0 {
		t.Errorf("%d cents are unclaimed, want none", after.UnclaimedCents)
	}

	s.paid(t)
	if c := s.read(t).Currencies[0]; c.There.CapturedCents != 1000 || c.Here.CapturedCents != 1000 || c.DifferenceCount != before.DifferenceCount {
		t.Errorf("after another payment the report has %+v there and %+v here, want 1000 captured", c.There, c.Here)
	}
	s.check(t)
}

// TestBooksAreNotReadAgainFromTooEarly asks for a report from a time of which payments may have been deleted. It is possible while none
// was, as in a new database.
func TestBooksAreNotReadAgainFromTooEarly(t *testing.T) {
	t.Parallel()
	s := newBooksShop(t)
	s.paid(t)
	tooEarly := time.Now().Add(-730 * 24 * time.Hour)
	_, err := s.books.Run(t.Context(), tooEarly)
	testenv.Must(t, err)
	s.exec(t, `INSERT INTO deleted_payments VALUES ('eur', 1, 0, 0)`)
	if _, err := s.books.Run(t.Context(), tooEarly); err == nil || !strings.Contains(err.Error(), "or later") {
		t.Errorf("books read from 730 days ago return the error %v, want one that says from when they can be read", err)
	}
	_, err = s.books.Run(t.Context(), tooEarly.Add(48*time.Hour))
	testenv.Must(t, err)
}
