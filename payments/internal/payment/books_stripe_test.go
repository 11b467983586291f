package payment_test

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/testenv"
	"example.com/shop/payments/internal/books"
)

// readStripe makes a report of the simulator's books, five minutes later.
func (s *shop) readStripe(t *testing.T) *books.Report {
	t.Helper()
	testenv.Exec(t, s.simDB, `UPDATE stripesim.balance_transactions SET created_at = created_at - interval '5 min'`)
	r, err := s.reconciliation(s.provider, config.Deployment, prometheus.NewRegistry()).Run(t.Context(), time.Time{})
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
	if c.There.CapturedCents != 3000 || c.There.RefundedCents != 1000 || c.UnclaimedCents != 1000 {
		t.Errorf("the report is %+v, want 3000 captured, 1000 refunded and 1000 unclaimed", c)
	}
	if r.LostSessions != 1 || time.Since(r.Position) > 2*time.Minute {
		t.Errorf("%d sessions are lost, and the books are read until %v; want 1, and about a minute ago", r.LostSessions, r.Position)
	}
}

// TestOtherCurrencyOfSettlement has payments in currencies with two, no and three decimals, whose balance transactions
// are in the account's euros. The report compares what the customers paid and got back.
func TestOtherCurrencyOfSettlement(t *testing.T) {
	s := newShop(t)
	currencies := []string{"jpy", "kwd", "usd"}
	for _, currency := range currencies {
		s.exec(t, `UPDATE products SET currency = upper($1)`, currency)
		_, a := s.paidOrder(t)
		s.returnMoney(t, a, 300)
	}
	r := s.readStripe(t)
	if len(r.Currencies) != len(currencies) || !r.Balanced {
		t.Fatalf("the report is %+v, want a balanced one of three currencies", r)
	}
	for _, c := range r.Currencies {
		if !slices.Contains(currencies, c.Currency) {
			t.Errorf("the report has the currency %s, want only %v", c.Currency, currencies)
		}
		for side, sums := range map[string]books.Sums{"provider": c.There, "shop": c.Here} {
			if sums.CapturedCents != 1000 || sums.RefundedCents != 300 {
				t.Errorf("%s: the %s's sums are %+v, want 1000 captured and 300 refunded", c.Currency, side, sums)
			}
		}
	}
}
