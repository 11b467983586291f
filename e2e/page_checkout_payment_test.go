package e2e

import "testing"

// TestPageShowsTheLastMinutes lets the deadline pass while two customers pay. The page must say until when the
// checkout is open. The payment of the first is declined before the deadline, and she pays then. The second one
// cancels, and is not charged.
func TestPageShowsTheLastMinutes(t *testing.T) {
	pageTest(t)
	s := newPaidSite(t, envTimeout+"=15s", envPrefix+"CHECKOUT_TIME=10m")
	first := shopTab(t, s.shop)
	checkout := s.buy(first)
	checkout.Front()
	checkout.Click(declineThere)
	checkout.WaitFor("body", "declined")
	second := shopTab(t, s.shop)
	s.buy(second)

	first.Front()
	first.WaitFor(aOrder, "Your checkout is open until")
	if n := first.Count(aOrder + ` [data-action="cancel"]:not([hidden])`); n != 1 {
		t.Errorf("an order with an open checkout has %d buttons to cancel, want 1: %s", n, first.Text(aOrder))
	}
	pay(first, checkout)
	first.WaitFor(aOrder, "Paid at")

	second.Front()
	second.WaitFor(aOrder, "Your checkout is open until")
	second.Click(cancelOrder)
	second.WaitFor(aOrder, "Cancelled by you")
	second.WaitFor(aOrder, "You were not charged.")
}
