package e2e

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/browsertest"
	"example.com/shop/payments/paymenttest"
)

// This file tests what the customers' page shows of payments.

const (
	checkoutLink = shoptest.AnOrder + ` a.button`
	payAtOnce    = shoptest.AnOrder + ` [data-action="pay-at-once"]`
	anyAction    = shoptest.AnOrder + ` .row > :not([hidden])`

	payThere     = `form[action$="/pay"] button`     // on the checkout page
	declineThere = `form[action$="/decline"] button` // on the checkout page
)

// buy orders a product, and opens its checkout.
func buy(s *paymenttest.Site, page *browsertest.Tab) (checkout *browsertest.Tab) {
	page.Click(shoptest.BuyBeans)
	return toCheckout(s, page)
}

// toCheckout opens the checkout of the newest order. It returns the tab of the checkout page. The shop's page is in
// front.
func toCheckout(s *paymenttest.Site, page *browsertest.Tab) (checkout *browsertest.Tab) {
	page.Click(shoptest.PayOrder)
	checkout = popup(page, s.Provider.URL+"/checkout/")
	page.Front()
	page.Until("the link to the checkout", func() bool { return page.Count(checkoutLink+":not([hidden])") == 1 })
	return checkout
}

// popup waits until a tab has opened another one with an address that begins with url, and returns that tab.
func popup(page *browsertest.Tab, url string) *browsertest.Tab {
	var id target.ID
	page.Until("a new tab at "+url, func() bool {
		for _, info := range popups(page) {
			if strings.HasPrefix(info.URL, url) {
				id = info.TargetID
			}
		}
		return id != ""
	})
	return page.Attach(id)
}

// popups returns the tabs that a tab has opened, and that are still open.
func popups(page *browsertest.Tab) []*target.Info {
	return browsertest.Run(page, func(ctx context.Context, own *chromedp.Target) (opened []*target.Info, err error) {
		infos, err := chromedp.Targets(ctx)
		for _, info := range infos {
			if info.OpenerID == own.TargetID {
				opened = append(opened, info)
			}
		}
		return opened, err
	})
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
	shoptest.PageTest(t)
	s := paymenttest.NewSite(t, shop, shop.TimeoutVariable()+"=10m")
	page := shoptest.ShopTab(t, s.Shop)
	still := page.MarkDocument()
	page.Expect("404", "Not Found") // a synchronous request has no URL in the console
	page.Click(shoptest.BuyBeans)
	checkWaysToPay(t, page, 0, http.StatusNotFound)
	checkout := toCheckout(s, page)
	page.WaitFor(shoptest.AnOrder, "Paying: held until")
	if !browsertest.Eval[bool](checkout, `window.opener === null`) {
		t.Error("the provider's page can control the shop's page by window.opener")
	}
	if page.Count(shoptest.PayOrder+":not([hidden])") != 0 || page.Count(payAtOnce+":not([hidden])") != 0 {
		t.Errorf("an order with an open checkout has other buttons to pay: %s", page.Text(shoptest.AnOrder))
	}
	checkout.Front()
	checkout.Click(declineThere)
	checkout.WaitFor("body", "declined")
	page.Front()
	pay(page, checkout)
	page.WaitFor(shoptest.AnOrder, "Paid at")
	page.WaitFor("#announcer", "Paid at")
	page.Click(shoptest.AnOrder + " summary")
	page.WaitFor(shoptest.AnOrder+" .timeline", "payment confirmed by the payment provider")
	if n := page.Count(anyAction); n != 0 {
		t.Errorf("a paid order has %d buttons and links, want none: %s", n, page.Text(shoptest.AnOrder))
	}
	if !still() {
		t.Error("the page reloaded itself")
	}

	page = shoptest.NewTab(t)
	page.Script(`window.open = () => null`)
	page.Navigate(s.Shop.URL)
	page.WaitFor(shoptest.Connection, shoptest.Connected)
	page.Click(shoptest.BuyBeans)
	page.Click(shoptest.PayOrder)
	page.WaitFor(shoptest.AnOrder, "The browser did not open the checkout in a new tab. Press Open the checkout.")
	page.Click(checkoutLink)
	popup(page, s.Provider.URL+"/checkout/").WaitFor("body", "Pay 21.90 EUR")
}

// TestPagePaysAtOnce checks that the page offers to pay an order at once, too, if the shop has the option.
func TestPagePaysAtOnce(t *testing.T) {
	shoptest.PageTest(t)
	page := shoptest.ShopTab(t, paymenttest.NewSite(t, shop, faulttest.EnvPrefix+"PAY_AT_ONCE=true", shop.TimeoutVariable()+"=10m").Shop)
	page.Click(shoptest.BuyBeans)
	checkWaysToPay(t, page, 1, http.StatusOK)
}

// checkWaysToPay checks that the page offers to pay the only order in the checkout, and at once by a number of
// buttons, and with which status the shop answers a customer who pays at once without the page.
func checkWaysToPay(t *testing.T, page *browsertest.Tab, buttons int, status float64) {
	t.Helper()
	const shown = ":not([hidden])"
	page.WaitFor(shoptest.AnOrder, "left to pay")
	if checkout, atOnce := page.Count(shoptest.PayOrder+shown), page.Count(payAtOnce+shown); checkout != 1 || atOnce != buttons {
		t.Errorf("the order has %d buttons of the checkout and %d to pay at once, want 1 and %d: %s", checkout, atOnce, buttons, page.Text(shoptest.AnOrder))
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
	shoptest.PageTest(t)
	s := paymenttest.NewSite(t, shop, shop.TimeoutVariable()+"=10m")
	page := shoptest.ShopTab(t, s.Shop)
	page.Expect("503", "/payments")
	page.Expect("503", "/close")
	s.Turn(t, "api", "down")
	page.Click(shoptest.BuyBeans)
	page.Click(shoptest.PayOrder)
	page.WaitFor(shoptest.AnOrder, "Try again")
	page.Until("the new tab is closed", func() bool { return len(popups(page)) == 0 })
	page.Front()
	s.Turn(t, "api", "up")
	page.Until("the checkout", func() bool { // the shop asks a provider that failed again after some seconds
		page.Click(shoptest.PayOrder)
		page.Until("an answer", func() bool {
			page.Front()
			return page.Count(checkoutLink+":not([hidden])") == 1 || strings.Contains(page.Text(shoptest.AnOrder), "Try again")
		})
		return page.Count(checkoutLink+":not([hidden])") == 1
	})
	popup(page, s.Provider.URL+"/checkout/").WaitFor("body", "Pay 21.90 EUR")
	page.Front()

	s.Turn(t, "api", "down")
	page.Click(shoptest.CancelOrder)
	page.WaitFor(shoptest.AnOrder, "The order is not cancelled, and may still be paid in its checkout. Try again.")
	if n := page.Count(checkoutLink + ":not([hidden])"); n != 1 {
		t.Errorf("an order whose checkout is open has %d links to it, want 1: %s", n, page.Text(shoptest.AnOrder))
	}
	s.Turn(t, "api", "up")
	page.Until("the cancellation", func() bool {
		page.Click(shoptest.CancelOrder)
		page.Until("an answer", func() bool {
			text := page.Text(shoptest.AnOrder)
			return strings.Contains(text, "Cancelled by you") || strings.Contains(text, "Try again")
		})
		return strings.Contains(page.Text(shoptest.AnOrder), "Cancelled by you")
	})
	page.WaitFor("#products", "10,000 left")
}

// TestPageTotalTooSmall opens the checkout of an order that costs less than the provider charges, as it can if the order
// was placed before the shop had a provider. The page must close the new tab, say on the order what is wrong, and let
// the customer cancel it. Then she orders a product that costs too little. The page must say why she cannot.
func TestPageTotalTooSmall(t *testing.T) {
	shoptest.PageTest(t)
	s := paymenttest.NewSite(t, shop, shop.TimeoutVariable()+"=10m")
	db := faulttest.OpenDatabase(t, s.Database)
	page := shoptest.ShopTab(t, s.Shop)
	page.Expect("409", "/payments")
	page.Expect("409", "/api/orders")
	page.Click(shoptest.BuyBeans)
	page.WaitFor(shoptest.AnOrder, "Pay")
	testenv.Exec(t, db, `UPDATE orders SET total_cents = 49`)
	page.Click(shoptest.PayOrder)
	page.WaitFor(shoptest.AnOrder, "The order costs 0.49 EUR, and the payment provider charges no less than 0.50 EUR")
	page.Until("the new tab is closed", func() bool { return len(popups(page)) == 0 })
	page.Front()
	page.Click(shoptest.CancelOrder)
	page.WaitFor(shoptest.AnOrder, "Cancelled by you")

	testenv.Exec(t, db, `UPDATE products SET price_cents = 49 WHERE id = $1`, shoptest.Beans)
	page.Click(shoptest.BuyBeans)
	page.WaitFor("body", "The order costs 0.49 EUR, and the payment provider charges no less than 0.50 EUR")
}

// TestPageShowsTheLastMinutes lets the deadline pass while two customers pay. The page must say until when the
// checkout is open. The payment of the first is declined before the deadline, and she pays then. The second one
// presses Cancel: the checkout is closed, and the timeout cancels the order.
func TestPageShowsTheLastMinutes(t *testing.T) {
	shoptest.PageTest(t)
	s := paymenttest.NewSite(t, shop, shop.TimeoutVariable()+"=15s", faulttest.EnvPrefix+"CHECKOUT_TIME=10m")
	first := shoptest.ShopTab(t, s.Shop)
	checkout := buy(s, first)
	checkout.Front()
	checkout.Click(declineThere)
	checkout.WaitFor("body", "declined")
	second := shoptest.ShopTab(t, s.Shop)
	buy(s, second)

	first.Front()
	first.WaitFor(shoptest.AnOrder, "Your checkout is open until")
	if left := first.Text(shoptest.AnOrder + " .countdown"); len(left) > len("9:59") {
		t.Errorf("the countdown of a checkout that is open for less than ten minutes is %s", left)
	}
	if n := first.Count(shoptest.AnOrder + ` [data-action="cancel"]:not([hidden])`); n != 1 {
		t.Errorf("an order with an open checkout has %d buttons to cancel, want 1: %s", n, first.Text(shoptest.AnOrder))
	}
	pay(first, checkout)
	first.WaitFor(shoptest.AnOrder, "Paid at")

	second.Front()
	second.WaitFor(shoptest.AnOrder, "Your checkout is open until")
	second.Click(shoptest.CancelOrder)
	second.WaitFor(shoptest.AnOrder, "Cancelled: not paid in time")
	second.WaitFor(shoptest.AnOrder, "You were not charged.")
}
