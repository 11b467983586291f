package e2e

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/payment/paymenttest"
	"example.com/shop/internal/testenv"
)

// This file tests what the customers' page shows of payments.

func init() { notServed = append(notServed, "/api/payments") }

const (
	openCheckout = aOrder + ` a.button`
	payAtOnce    = aOrder + ` [data-action="pay-at-once"]`
	anyAction    = aOrder + ` .row > :not([hidden])`

	payThere     = `form[action$="/pay"] button`     // on the checkout page
	declineThere = `form[action$="/decline"] button` // on the checkout page
)

// buy orders a product, and opens its checkout. It returns the tab of the checkout page. The shop's page is in front.
func buy(s *paymenttest.Site, page *tab) (checkout *tab) {
	page.t.Helper()
	page.click(buyBeans)
	page.click(payOrder)
	checkout = page.popup(s.Provider.URL + "/checkout/")
	page.front()
	page.until("the link to the checkout", func() bool { return page.count(openCheckout+":not([hidden])") == 1 })
	return checkout
}

// pay presses Pay on the checkout page. The shop's page is in front afterwards.
func (p *tab) pay(checkout *tab) {
	p.t.Helper()
	checkout.front()
	checkout.click(payThere)
	checkout.until("the provider sends the browser back to the shop", func() bool { return checkout.count("#orders") == 1 })
	p.front()
}

// popup waits until the tab has opened a tab with an address that begins with url, and returns that tab.
func (p *tab) popup(url string) *tab {
	p.t.Helper()
	var id target.ID
	p.until("a new tab at "+url, func() bool {
		for _, info := range p.popups() {
			if strings.HasPrefix(info.URL, url) {
				id = info.TargetID
			}
		}
		return id != ""
	})
	ctx, _ := chromedp.NewContext(p.ctx, chromedp.WithTargetID(id)) // it ends with p
	testenv.Must(p.t, chromedp.Do(ctx))                             // attach for longer than one action
	return &tab{t: p.t, ctx: ctx}
}

// popups returns the tabs that the tab has opened and that are still open.
func (p *tab) popups() (opened []*target.Info) {
	p.t.Helper()
	infos, err := chromedp.Targets(p.ctx)
	testenv.Must(p.t, err)
	p.do(chromedp.Func(func(_ context.Context, own *chromedp.Target) error {
		for _, info := range infos {
			if info.OpenerID == own.TargetID {
				opened = append(opened, info)
			}
		}
		return nil
	}))
	return opened
}

// TestPageCheckout declines a payment in the checkout, and then pays. The page must show each step without a reload.
func TestPageCheckout(t *testing.T) {
	pageTest(t)
	s := paymenttest.NewSite(t, orders, envTimeout+"=10m")
	page := shopTab(t, s.Shop)
	still := page.markDocument()
	checkout := buy(s, page)
	page.waitFor(aOrder, "Paying: held until")
	if !value(checkout, chromedp.Evaluate[bool](`window.opener === null`)) {
		t.Error("the provider's page can control the shop's page by window.opener")
	}
	if page.count(payOrder+":not([hidden])") != 0 || page.count(payAtOnce+":not([hidden])") != 0 {
		t.Errorf("an order with an open checkout has other buttons to pay: %s", page.text(aOrder))
	}
	checkout.front()
	checkout.click(declineThere)
	checkout.waitFor("body", "declined")
	page.front()
	page.pay(checkout)
	page.waitFor(aOrder, "Paid at")
	page.waitFor("#announcer", "Paid at")
	page.click(aOrder + " summary")
	page.waitFor(aOrder+" .timeline", "payment confirmed by the payment provider")
	if n := page.count(anyAction); n != 0 {
		t.Errorf("a paid order has %d buttons and links, want none: %s", n, page.text(aOrder))
	}
	if !still() {
		t.Error("the page reloaded itself")
	}
}

// TestPageHasNoFreeGoods checks that the page of a shop with a provider offers to pay an order only in the checkout, and
// that a customer who does without the page gets nothing either. With the option, the page offers both.
func TestPageHasNoFreeGoods(t *testing.T) {
	pageTest(t)
	const shown = ":not([hidden])"
	for name, test := range map[string]struct {
		env     []string
		buttons int
		status  float64
	}{
		"by default":      {nil, 0, http.StatusNotFound},
		"with the option": {[]string{faulttest.EnvPrefix + "PAY_AT_ONCE=true"}, 1, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			s := paymenttest.NewSite(t, orders, append(test.env, envTimeout+"=10m")...)
			page := shopTab(t, s.Shop)
			page.click(buyBeans)
			page.waitFor(aOrder, "left to pay")
			if pay, atOnce := page.count(payOrder+shown), page.count(payAtOnce+shown); pay != 1 || atOnce != test.buttons {
				t.Errorf("the order has %d buttons of the checkout and %d to pay at once, want 1 and %d: %s", pay, atOnce, test.buttons, page.text(aOrder))
			}
			if test.status != http.StatusOK {
				page.expect("404", "Not Found") // a synchronous request has no URL in the console
			}
			const send = `(() => {
				const request = new XMLHttpRequest();
				request.open('POST', '/api/orders/' + document.querySelector('[data-order]').dataset.order + '/pay', false);
				request.send();
				return request.status;
			})()`
			if status := value(page, chromedp.Evaluate[float64](send)); status != test.status {
				t.Errorf("the request to pay at once is answered with %v, want %v", status, test.status)
			}
		})
	}
}

// TestPageCheckoutBlocked opens the page in a browser that blocks new tabs. The page must offer a link.
func TestPageCheckoutBlocked(t *testing.T) {
	pageTest(t)
	s := paymenttest.NewSite(t, orders, envTimeout+"=10m")
	page := open(t, "about:blank")
	page.script(`window.open = () => null`)
	page.do(chromedp.Navigate(s.Shop.URL))
	page.waitFor(connection, "Live")
	page.click(buyBeans)
	page.click(payOrder)
	page.waitFor(aOrder, "The browser did not open the checkout in a new tab. Press Open the checkout.")
	page.click(openCheckout)
	page.popup(s.Provider.URL+"/checkout/").waitFor("body", "Pay 21.90 EUR")
}

// TestPageProviderIsAway opens a checkout while the provider is down. The page must close the new tab and show the
// problem, and open the checkout when the customer tries again.
func TestPageProviderIsAway(t *testing.T) {
	pageTest(t)
	s := paymenttest.NewSite(t, orders, envTimeout+"=10m")
	page := shopTab(t, s.Shop)
	page.expect("503", "/payments")
	s.Turn(t, "api", "down")
	page.click(buyBeans)
	page.click(payOrder)
	page.waitFor(aOrder, "Try again")
	page.until("the new tab is closed", func() bool { return len(page.popups()) == 0 })
	page.front()
	s.Turn(t, "api", "up")
	page.until("the checkout", func() bool { // the shop asks a provider that failed again after some seconds
		page.click(payOrder)
		page.until("an answer", func() bool {
			page.front()
			return page.count(openCheckout+":not([hidden])") == 1 || strings.Contains(page.text(aOrder), "Try again")
		})
		return page.count(openCheckout+":not([hidden])") == 1
	})
	page.popup(s.Provider.URL+"/checkout/").waitFor("body", "Pay 21.90 EUR")
}

// TestPageCancelsWhilePaying cancels an order with an open checkout while the provider does not answer.
func TestPageCancelsWhilePaying(t *testing.T) {
	pageTest(t)
	s := paymenttest.NewSite(t, orders, envTimeout+"=10m")
	page := shopTab(t, s.Shop)
	buy(s, page)
	s.Turn(t, "api", "hung")
	page.click(cancelOrder)
	page.waitFor(aOrder, "Being cancelled: waiting for the payment provider")
	if n := page.count(anyAction); n != 0 {
		t.Errorf("an order that is being cancelled has %d buttons and links, want none: %s", n, page.text(aOrder))
	}
	s.Turn(t, "api", "up")
	page.waitFor(aOrder, "Cancelled by you")
	page.waitFor("#products", "10,000 left")
}
