package payment_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/payment"
	"example.com/shop/internal/testenv"
)

// TestBooksOfStripe reads the balance transactions and the sessions of the simulator of Stripe.
func TestBooksOfStripe(t *testing.T) {
	s := newShop(t)
	o, a := s.placeOpen(t)
	s.pay(t, a.CheckoutURL)
	s.settleNow(t, o.ID)
	_, late := s.late(t)
	s.sendRefund(t, late.ID)
	_, lost := s.placeOpen(t)
	s.pay(t, lost.CheckoutURL)
	_, tab := s.placeOpen(t)
	s.exec(t, `DELETE FROM payment_attempts WHERE id IN ($1, $2)`, lost.ID, tab.ID)
	s.exec(t, `UPDATE orders SET hold_until = NULL WHERE status = 'pending'`)
	testenv.Exec(t, s.simDB, `UPDATE stripesim.balance_transactions SET created_at = created_at - interval '5 min'`)

	log := slog.New(slog.DiscardHandler)
	cfg := config
	cfg.Mode = "test"
	reg := prometheus.NewRegistry()
	books := payment.NewReconciliation(s.store, payment.NewCalls(s.provider, payment.Limits{}, log, reg), cfg, log, reg)
	r, err := books.Run(t.Context())
	testenv.Must(t, err)
	c := wantReport(t, r, 2000, 1000, true)
	if c.There.CapturedCents != 3000 || c.There.RefundedCents != 1000 || c.UnclaimedCents != 1000 || c.UnexplainedCents != 0 {
		t.Errorf("the report is %+v, want 3000 captured, 1000 refunded and 1000 unclaimed", c)
	}
	if r.LostSessions != 1 || time.Since(r.Position) > 2*time.Minute {
		t.Errorf("%d sessions are lost, and the books are read until %v; want 1, and about a minute ago", r.LostSessions, r.Position)
	}
}
