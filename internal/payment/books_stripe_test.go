package payment_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/payment"
	"example.com/shop/internal/testenv"
)

// readStripe makes a report of the simulator's books, five minutes later.
func (s *shop) readStripe(t *testing.T) *payment.Report {
	t.Helper()
	testenv.Exec(t, s.simDB, `UPDATE stripesim.balance_transactions SET created_at = created_at - interval '5 min'`)
	log := slog.New(slog.DiscardHandler)
	cfg := config
	cfg.Mode = "test"
	reg := prometheus.NewRegistry()
	r, err := payment.NewReconciliation(s.store, payment.NewCalls(s.provider, payment.Limits{}, log, reg), cfg, log, reg).Run(t.Context(), time.Time{})
	testenv.Must(t, err)
	return r
}

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
	r := s.readStripe(t)
	c := wantReport(t, r, 2000, 1000, false)
	if c.There.CapturedCents != 3000 || c.There.RefundedCents != 1000 || c.UnclaimedCents != 1000 || c.UnexplainedCents != 0 {
		t.Errorf("the report is %+v, want 3000 captured, 1000 refunded and 1000 unclaimed", c)
	}
	if r.LostSessions != 1 || time.Since(r.Position) > 2*time.Minute {
		t.Errorf("%d sessions are lost, and the books are read until %v; want 1, and about a minute ago", r.LostSessions, r.Position)
	}
}

// TestOtherCurrencyOfSettlement has a payment in dollars, whose balance transactions are in the account's euros. The report
// compares what the customer paid and got back.
func TestOtherCurrencyOfSettlement(t *testing.T) {
	s := newShop(t)
	s.exec(t, `UPDATE products SET currency = 'USD'`)
	o, _ := s.paidOrder(t)
	refund, _, err := s.RequestRefund(t.Context(), o.ID, payment.RefundRequest{Key: "one", AmountCents: 300, Actor: "Ann", Note: "broken"})
	testenv.Must(t, err)
	for range 2 {
		handle(t, s.SendRefunds, refund.ID.String())
		s.checkNow(t, o.ID)
	}
	r := s.readStripe(t)
	if len(r.Currencies) != 1 || !r.Balanced || r.Currencies[0].Currency != "usd" {
		t.Fatalf("the report is %+v, want a balanced one of dollars only", r)
	}
	for side, sums := range map[string]payment.Sums{"provider": r.Currencies[0].There, "shop": r.Currencies[0].Here} {
		if sums.CapturedCents != 1000 || sums.RefundedCents != 300 || sums.ClosingCents != 700 {
			t.Errorf("the %s's sums are %+v, want 1000 captured and 300 refunded", side, sums)
		}
	}
}
