package e2e

import (
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/payment/paymenttest"
)

import "testing"

// TestPageShowsTheLastMinutes lets the deadline pass while the customer pays. The page must say until when the checkout is
// open, also after a reload, and show the payment.
func TestPageShowsTheLastMinutes(t *testing.T) {
	pageTest(t)
	s := paymenttest.NewSite(t, orders, envTimeout+"=15s", faulttest.EnvPrefix+"CHECKOUT_TIME=10m")
	page := shopTab(t, s.Shop)
	checkout := buy(s, page)
	checkout.front()
	checkout.click(declineThere)
	checkout.waitFor("body", "declined")
	page.front()
	page.waitFor(aOrder, "Your checkout is open until")
	if n := page.count(aOrder + ` [data-action="cancel"]:not([hidden])`); n != 1 {
		t.Errorf("an order with an open checkout has %d buttons to cancel, want 1: %s", n, page.text(aOrder))
	}
	page.pay(checkout)
	page.waitFor(aOrder, "Paid at")
}

// TestPageShowsAClosedCheckout has a customer cancel after the deadline, and look at the order then.
func TestPageShowsAClosedCheckout(t *testing.T) {
	pageTest(t)
	s := paymenttest.NewSite(t, orders, envTimeout+"=15s", faulttest.EnvPrefix+"CHECKOUT_TIME=10m")
	page := shopTab(t, s.Shop)
	buy(s, page)
	page.front()
	page.waitFor(aOrder, "Your checkout is open until")
	page.click(aOrder + ` [data-action="cancel"]`)
	page.waitFor(aOrder, "Cancelled by you")
	page.waitFor(aOrder, "You were not charged.")
}
