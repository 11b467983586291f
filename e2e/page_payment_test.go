package e2e

import (
	"net/http"
	"strings"
	"testing"

	"example.com/shop/internal/browsertest"
)

// This file tests what the customers' page shows of payments.

const (
	openCheckout = aOrder + ` a.button`
	payAtOnce    = aOrder + ` [data-action="pay-at-once"]`
	anyAction    = aOrder + ` .row > :not([hidden])`

	payThere     = `form[action$="/pay"] button`     // on the checkout page
	declineThere = `form[action$="/decline"] button` // on the checkout page
)

// buy orders a product, and opens its checkout.
func (s *paidSite) buy(page *browsertest.Tab) (checkout *browsertest.Tab) {
	page.Click(buyBeans)
	return s.checkout(page)
}

// checkout opens the checkout of the newest order. It returns the tab of the checkout page. The shop's page is in
// front.
func (s *paidSite) checkout(page *browsertest.Tab) (checkout *browsertest.Tab) {
	page.Click(payOrder)
	checkout = page.Popup(s.provider.url + "/checkout/")
	page.Front()
	page.Until("the link to the checkout", func() bool { return page.Count(openCheckout+":not([hidden])") == 1 })
	return checkout
}

// pay presses Pay on the checkout page. The shop's page is in front afterwards.
func pay(page, checkout *browsertest.Tab) {
	checkout.Front()
	checkout.Click(payThere)
	checkout.Until("the provider sends the browser back to the shop", func() bool { return checkout.Count("#orders") == 1 })
	page.Front()
}

// TestPageCheckout declines a payment in the checkout, and then pays. The page must show each step without a reload.
// The shop must give no goods away, so it lets the customer pay only in the checkout. In a browser that blocks new
// tabs, the page must offer a link.
func TestPageCheckout(t *testing.T) {
	pageTest(t)
	s := newPaidSite(t, envTimeout+"=10m")
	page := shopTab(t, s.shop)
	still := page.MarkDocument()
	page.Expect("404", "Not Found") // a synchronous request has no URL in the console
	page.Click(buyBeans)
	checkWaysToPay(t, page, 0, http.StatusNotFound)
	checkout := s.checkout(page)
	page.WaitFor(aOrder, "Paying: held until")
	if !browsertest.Eval[bool](checkout, `window.opener === null`) {
		t.Error("the provider's page can control the shop's page by window.opener")
	}
	if page.Count(payOrder+":not([hidden])") != 0 || page.Count(payAtOnce+":not([hidden])") != 0 {
		t.Errorf("an order with an open checkout has other buttons to pay: %s", page.Text(aOrder))
	}
	checkout.Front()
	checkout.Click(declineThere)
	checkout.WaitFor("body", "declined")
	page.Front()
	pay(page, checkout)
	page.WaitFor(aOrder, "Paid at")
	page.WaitFor("#announcer", "Paid at")
	page.Click(aOrder + " summary")
	page.WaitFor(aOrder+" .timeline", "payment confirmed by the payment provider")
	if n := page.Count(anyAction); n != 0 {
		t.Errorf("a paid order has %d buttons and links, want none: %s", n, page.Text(aOrder))
	}
	if !still() {
		t.Error("the page reloaded itself")
	}

	page = newTab(t)
	page.Script(`window.open = () => null`)
	page.Navigate(s.shop.url)
	page.WaitFor(connection, connected)
	page.Click(buyBeans)
	page.Click(payOrder)
	page.WaitFor(aOrder, "The browser did not open the checkout in a new tab. Press Open the checkout.")
	page.Click(openCheckout)
	page.Popup(s.provider.url+"/checkout/").WaitFor("body", "Pay 21.90 EUR")
}

// TestPagePaysAtOnce checks that the page offers to pay an order at once, too, if the shop has the option.
func TestPagePaysAtOnce(t *testing.T) {
	pageTest(t)
	page := shopTab(t, newPaidSite(t, envPrefix+"PAY_AT_ONCE=true", envTimeout+"=10m").shop)
	page.Click(buyBeans)
	checkWaysToPay(t, page, 1, http.StatusOK)
}

// checkWaysToPay checks that the page offers to pay the only order in the checkout, and at once by a number of
// buttons, and with which status the shop answers a customer who pays at once without the page.
func checkWaysToPay(t *testing.T, page *browsertest.Tab, buttons int, status float64) {
	t.Helper()
	const shown = ":not([hidden])"
	page.WaitFor(aOrder, "left to pay")
	if checkout, atOnce := page.Count(payOrder+shown), page.Count(payAtOnce+shown); checkout != 1 || atOnce != buttons {
		t.Errorf("the order has %d buttons of the checkout and %d to pay at once, want 1 and %d: %s", checkout, atOnce, buttons, page.Text(aOrder))
	}
	const send = `(() => {
		const request = new XMLHttpRequest();
		request.open('POST', '/api/orders/' + document.querySelector('[data-order]').dataset.order + '/pay', false);
		request.send();
		return request.status;
	})()`
	if got := browsertest.Eval[float64](page, send); got != status {
		t.Errorf("the request to pay at once is answered with %v, want %v", got, status)
	}
}

// TestPageProviderIsAway opens a checkout while the provider is down. The page must close the new tab and show the
// problem, and open the checkout when the customer tries again. Then the customer cancels while the provider does not
// answer.
func TestPageProviderIsAway(t *testing.T) {
	pageTest(t)
	s := newPaidSite(t, envTimeout+"=10m")
	page := shopTab(t, s.shop)
	page.Expect("503", "/payments")
	s.turn(t, "api", "down")
	page.Click(buyBeans)
	page.Click(payOrder)
	page.WaitFor(aOrder, "Try again")
	page.Until("the new tab is closed", func() bool { return page.Popups() == 0 })
	page.Front()
	s.turn(t, "api", "up")
	page.Until("the checkout", func() bool { // the shop asks a provider that failed again after some seconds
		page.Click(payOrder)
		page.Until("an answer", func() bool {
			page.Front()
			return page.Count(openCheckout+":not([hidden])") == 1 || strings.Contains(page.Text(aOrder), "Try again")
		})
		return page.Count(openCheckout+":not([hidden])") == 1
	})
	page.Popup(s.provider.url+"/checkout/").WaitFor("body", "Pay 21.90 EUR")
	page.Front()

	s.turn(t, "api", "hung")
	page.Click(cancelOrder)
	page.WaitFor(aOrder, "Being cancelled: waiting for the payment provider")
	if n := page.Count(anyAction); n != 0 {
		t.Errorf("an order that is being cancelled has %d buttons and links, want none: %s", n, page.Text(aOrder))
	}
	s.turn(t, "api", "up")
	page.WaitFor(aOrder, "Cancelled by you")
	page.WaitFor("#products", "10,000 left")
}
