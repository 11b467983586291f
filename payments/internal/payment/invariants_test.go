package payment_test

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/testenv"
	"example.com/shop/payments/internal/payment"
)

// TestInvariantsFindBrokenRows breaks rows by hand, and checks that the invariant finds exactly them.
func TestInvariantsFindBrokenRows(t *testing.T) {
	s := newMemoryShop(t)
	paid, paidAttempt := s.placeOpen(t)
	s.pay(t, paidAttempt.CheckoutURL)
	s.settleNow(t, paid.ID)
	atOnce := s.place(t)
	_, err := s.orders.Pay(t.Context(), atOnce.CustomerID, atOnce.ID)
	testenv.Must(t, err)
	_, openAttempt := s.placeOpen(t)
	late, lateAttempt := s.late(t)
	refund := s.refundOf(t, lateAttempt.ID)
	bound := time.Minute

	violations := func() map[string]int {
		t.Helper()
		all, err := payment.Invariants(t.Context(), s.gorm, bound, false)
		testenv.Must(t, err)
		found := map[string]int{}
		for _, v := range all {
			found[v.Subject] = v.Invariant
		}
		return found
	}
	if found := violations(); len(found) > 0 {
		t.Fatalf("a healthy shop violates invariants: %v", found)
	}
	for name, test := range map[string]struct {
		breaks string
		id     any
		want   map[string]int
	}{
		"a paid order without a success": {
			`UPDATE payment_attempts SET applied = false WHERE id = $1`, paidAttempt.ID,
			map[string]int{"order " + paid.ID.String(): 6, "attempt " + paidAttempt.ID.String(): 7},
		},
		"a success of another amount": {
			`UPDATE payment_attempts SET amount_cents = 999, captured_cents = 999 WHERE id = $1`, paidAttempt.ID,
			map[string]int{"order " + paid.ID.String(): 6},
		},
		"a success of another currency": {
			`UPDATE payment_attempts SET currency = 'usd' WHERE id = $1`, paidAttempt.ID,
			map[string]int{"order " + paid.ID.String(): 6},
		},
		"an order paid twice": {
			`UPDATE orders SET ended_by = 'customer', hold_until = NULL WHERE id = $1`, paid.ID,
			map[string]int{"order " + paid.ID.String(): 6},
		},
		"a success applied to an order that is not paid": {
			`WITH r AS (DELETE FROM refunds WHERE attempt_id = $1) UPDATE payment_attempts SET applied = true WHERE id = $1`, lateAttempt.ID,
			map[string]int{"order " + late.ID.String(): 6},
		},
		"a success of another amount on an order that is not paid": {
			`WITH r AS (DELETE FROM refunds WHERE attempt_id = $1)
				UPDATE payment_attempts SET applied = true, amount_cents = 999, captured_cents = 999 WHERE id = $1`, lateAttempt.ID,
			map[string]int{"order " + late.ID.String(): 6},
		},
		"money that is neither applied nor refunded": {
			`DELETE FROM refunds WHERE attempt_id = $1`, lateAttempt.ID,
			map[string]int{"attempt " + lateAttempt.ID.String(): 7},
		},
		"money that is refunded in part": {
			`UPDATE refunds SET amount_cents = 999 WHERE attempt_id = $1`, lateAttempt.ID,
			map[string]int{"attempt " + lateAttempt.ID.String(): 7},
		},
		"money that is applied and refunded": {
			`INSERT INTO refunds (id, attempt_id, reason, amount_cents, created_at, next_check)
				VALUES ('` + uuid.NewString() + `', $1, 'late', 1000, now(), now())`, paidAttempt.ID,
			map[string]int{"attempt " + paidAttempt.ID.String(): 7},
		},
		"an attempt opened after the deadline": {
			`UPDATE payment_attempts SET opened_at = opened_at + interval '1 hour', closes_at = closes_at + interval '1 hour' WHERE id = $1`, openAttempt.ID,
			map[string]int{"attempt " + openAttempt.ID.String(): 4},
		},
		"an overdue attempt": {
			`UPDATE payment_attempts SET next_check = now() - interval '61 s' WHERE id = $1`, openAttempt.ID,
			map[string]int{"attempt " + openAttempt.ID.String(): 8},
		},
		"an overdue refund": {
			`UPDATE refunds SET next_check = now() - interval '61 s' WHERE id = $1`, refund,
			map[string]int{"refund " + refund: 8},
		},
		"an attempt that is overdue by less than the bound": {
			`UPDATE payment_attempts SET next_check = now() - interval '50 s' WHERE id = $1`, openAttempt.ID, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			restore := s.snapshot(t)
			defer restore()
			s.exec(t, test.breaks, test.id)
			found := violations()
			for subject, invariant := range test.want {
				if found[subject] != invariant {
					t.Errorf("%s violates invariant %d, want %d", subject, found[subject], invariant)
				}
			}
			if len(found) != len(test.want) {
				t.Errorf("the violations are %v, want %v", found, test.want)
			}
		})
	}
}

// snapshot copies the tables, and returns a function that restores them.
func (s *shop) snapshot(t *testing.T) (restore func()) {
	t.Helper()
	tables := []string{"orders", "payment_attempts", "refunds"}
	for _, table := range tables {
		s.exec(t, `DROP TABLE IF EXISTS saved_`+table)
		s.exec(t, `CREATE TABLE saved_`+table+` AS SELECT * FROM `+table)
	}
	return func() {
		t.Helper()
		s.exec(t, `DELETE FROM refunds`)
		s.exec(t, `DELETE FROM payment_attempts`)
		s.exec(t, `INSERT INTO payment_attempts SELECT * FROM saved_payment_attempts`)
		s.exec(t, `INSERT INTO refunds SELECT * FROM saved_refunds`)
		s.exec(t, `UPDATE orders o SET ended_by = b.ended_by, hold_until = b.hold_until
			FROM saved_orders b WHERE b.id = o.id`)
	}
}
