package e2e

import "testing"

// TestPageShowsTheLastMinutes lets the deadline pass while the customer pays. The page must say until when the checkout is
// open, also after a reload, and show the payment.
func TestPageShowsTheLastMinutes(t *testing.T) {
	pageTest(t)
	s := newPaidSite(t, envTimeout+"=15s", envPrefix+"CHECKOUT_TIME=10m")
	page := shopTab(t, s.shop)
	checkout := s.buy(page)
	checkout.Front()
	checkout.Click(declineThere)
	checkout.WaitFor("body", "declined")
	page.Front()
	page.WaitFor(aOrder, "Your checkout is open until")
	if n := page.Count(aOrder + ` [data-action="cancel"]:not([hidden])`); n != 1 {
		t.Errorf("an order with an open checkout has %d buttons to cancel, want 1: %s", n, page.Text(aOrder))
	}
	pay(page, checkout)
	page.WaitFor(aOrder, "Paid at")
}

// TestPageShowsAClosedCheckout has a customer cancel after the deadline, and look at the order then.
func TestPageShowsAClosedCheckout(t *testing.T) {
	pageTest(t)
	s := newPaidSite(t, envTimeout+"=15s", envPrefix+"CHECKOUT_TIME=10m")
	page := shopTab(t, s.shop)
	s.buy(page)
	page.Front()
	page.WaitFor(aOrder, "Your checkout is open until")
	page.Click(aOrder + ` [data-action="cancel"]`)
	page.WaitFor(aOrder, "Cancelled by you")
	page.WaitFor(aOrder, "You were not charged.")
}
