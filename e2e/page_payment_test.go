package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"example.com/shop/internal/testenv"
)

// This file tests what the pages show of payments. A team that leaves payments out deletes it.

func init() { payNow = payAtOnce }

const (
	openCheckout = aOrder + ` a.button`
	payAtOnce    = aOrder + ` [data-action="pay-at-once"]`
	extendOrder  = aOrder + ` [data-action="extend"]`
	anyAction    = aOrder + ` .row > :not([hidden])`

	payThere     = `form[action$="/pay"] button`     // on the checkout page
	declineThere = `form[action$="/decline"] button` // on the checkout page
)

// paidSite is a shop whose customers pay at a simulated payment provider. Each is a process.
type paidSite struct {
	shop     *process
	provider *process
}

func newPaidSite(t *testing.T, env ...string) *paidSite {
	t.Helper()
	shopAddr := freeAddress(t)
	secrets := []string{envPrefix + "STRIPE_KEY=sk_test_page", envPrefix + "STRIPE_WEBHOOK_SECRET=whsec_page"}
	provider := start(t, command(t, append(secrets, envDatabaseURL+"="+testenv.Postgres(t), envHTTPAddr+"=127.0.0.1:0",
		envPrefix+"WEBHOOK_URL=http://"+shopAddr+"/webhooks/stripe"), "provider"))
	env = append(append(secrets, envHTTPAddr+"="+shopAddr, envPrefix+"STRIPE_URL="+provider.url,
		envPrefix+"PUBLIC_URL=http://"+shopAddr), env...)
	return &paidSite{shop: newSite(t, testenv.Redis(t), env...).serve(t), provider: provider}
}

// turn turns a knob of the provider.
func (s *paidSite) turn(t *testing.T, knob, value string) {
	t.Helper()
	s.control(t, http.MethodPut, "/sim/knobs", fmt.Sprintf(`{%q: %q}`, knob, value))
}

// control sends a request to the provider's control API.
func (s *paidSite) control(t *testing.T, method, path, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.provider.url+path, strings.NewReader(body))
	testenv.Must(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	testenv.Must(t, err)
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		t.Fatalf("%s %s: status %d, want 2xx", method, path, resp.StatusCode)
	}
}

// buy orders a product, and opens its checkout. It returns the tab of the checkout page. The shop's page is in front.
func (s *paidSite) buy(page *tab) (checkout *tab) {
	page.t.Helper()
	page.click(buyBeans)
	page.waitFor(aOrder, "Pay with store credit")
	page.click(payOrder)
	checkout = page.popup(s.provider.url + "/checkout/")
	page.front()
	page.waitFor(aOrder, "Paying: held until")
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
	s := newPaidSite(t, envTimeout+"=10m")
	page := shopTab(t, s.shop)
	still := page.markDocument()
	checkout := s.buy(page)
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

// TestPageCheckoutBlocked opens the page in a browser that blocks new tabs. The page must offer a link.
func TestPageCheckoutBlocked(t *testing.T) {
	pageTest(t)
	s := newPaidSite(t, envTimeout+"=10m")
	page := open(t, "about:blank")
	page.script(`window.open = () => null`)
	page.do(chromedp.Navigate(s.shop.url))
	page.waitFor(connection, "Live")
	page.click(buyBeans)
	page.click(payOrder)
	page.waitFor(aOrder, "The browser did not open the checkout in a new tab. Press Open the checkout.")
	page.click(openCheckout)
	page.popup(s.provider.url+"/checkout/").waitFor("body", "Pay 21.90 EUR")
}

// TestPageProviderIsAway opens a checkout while the provider is down. The page must close the new tab and show the
// problem, and open the checkout when the customer tries again.
func TestPageProviderIsAway(t *testing.T) {
	pageTest(t)
	s := newPaidSite(t, envTimeout+"=10m")
	page := shopTab(t, s.shop)
	page.expect("503", "/payments")
	s.turn(t, "api", "down")
	page.click(buyBeans)
	page.click(payOrder)
	page.waitFor(aOrder, "Try again")
	page.until("the new tab is closed", func() bool { return len(page.popups()) == 0 })
	page.front()
	s.turn(t, "api", "up")
	page.until("the checkout", func() bool { // the shop asks a provider that failed again after some seconds
		page.click(payOrder)
		page.until("an answer", func() bool {
			page.front()
			return page.count(openCheckout+":not([hidden])") == 1 || strings.Contains(page.text(aOrder), "Try again")
		})
		return page.count(openCheckout+":not([hidden])") == 1
	})
	page.popup(s.provider.url+"/checkout/").waitFor("body", "Pay 21.90 EUR")
}

// TestPagePaysAfterTheHold pays an order while the provider does not answer the shop, until the hold has ended. The
// page must show what the shop waits for, the cancellation and the refund, and the operators' page the money.
func TestPagePaysAfterTheHold(t *testing.T) {
	pageTest(t)
	s := newPaidSite(t, envTimeout+"=8s", envPrefix+"PAYMENT_GRACE=6s")
	ops := opsTab(t, s.shop)
	page := shopTab(t, s.shop)
	checkout := s.buy(page)
	s.turn(t, "api", "down")
	page.pay(checkout)
	page.waitFor(aOrder, "The shop is asking the payment provider whether you paid.")
	page.waitFor("#announcer", "The shop is asking the payment provider whether you paid.")
	page.waitFor(aOrder+" .countdown", "0:0")
	if n := page.count(anyAction); n != 0 {
		t.Errorf("an order past its deadline has %d buttons and links, want none: %s", n, page.text(aOrder))
	}
	page.waitFor(aOrder, "Cancelled: not paid in time")
	page.waitFor(aOrder, "The payment provider has not answered yet. If you paid, your payment will be refunded.")
	s.turn(t, "api", "up")
	page.waitFor(aOrder, "Your payment of €21.90 came too late and was refunded at")
	page.waitFor("#announcer", "came too late and was refunded at")
	ops.front()
	ops.waitFor("#money", "returned\n€21.90")
	for _, want := range []string{"captured\n€21.90", "applied\n€0.00", "owed\n€0.00"} {
		ops.waitFor("#money", want)
	}
	ops.waitFor("#attempts", "succeeded\n1")
	ops.waitFor("#refunds", "confirmed\n1")
	ops.until("all invariants hold", func() bool { return ops.count("#invariants .holds") == 7 })
}

// TestPageCancelsWhilePaying cancels an order with an open checkout while the provider does not answer.
func TestPageCancelsWhilePaying(t *testing.T) {
	pageTest(t)
	s := newPaidSite(t, envTimeout+"=10m")
	page := shopTab(t, s.shop)
	s.buy(page)
	s.turn(t, "api", "hung")
	page.click(cancelOrder)
	page.waitFor(aOrder, "Being cancelled: waiting for the payment provider")
	if n := page.count(anyAction); n != 0 {
		t.Errorf("an order that is being cancelled has %d buttons and links, want none: %s", n, page.text(aOrder))
	}
	s.turn(t, "api", "up")
	page.waitFor(aOrder, "Cancelled by you")
	page.waitFor("#products", "10,000 left")
}

// TestPageExtends waits for the reminder, and then extends the deadline.
func TestPageExtends(t *testing.T) {
	pageTest(t)
	page := shopTab(t, newSite(t, testenv.Redis(t), envTimeout+"=18s", envPrefix+"ORDER_EXTENSION=2m").serve(t))
	page.click(buyBeans)
	page.click(aOrder + " summary")
	page.waitFor(aOrder+" .state", "Only seconds left to pay")
	page.waitFor("#announcer", "seconds left to pay")
	page.waitFor(aOrder+" .timeline", "reminder sent by the worker")
	page.waitFor(extendOrder, "Extend by 2 minutes")
	page.click(extendOrder)
	page.waitFor(aOrder+" .countdown", "2:")
	page.waitFor(aOrder+" .timeline", "deadline extended by you")
	if page.count(extendOrder+":not([hidden])") != 0 {
		t.Error("the customer can extend the deadline twice")
	}
}

// TestPageClosesTheSale closes the sale of a product on the operators' page. The customer's page must count down to the
// new deadline.
func TestPageClosesTheSale(t *testing.T) {
	pageTest(t)
	p := slowSite(t)
	page := shopTab(t, p)
	page.click(buyBeans)
	page.waitFor(aOrder+" .countdown", "9:5")
	page.click(aOrder + " summary")
	ops := opsTab(t, p)
	ops.waitFor("#close-sale-product", "Espresso beans")
	value(ops, chromedp.Evaluate[bool](`document.querySelectorAll("#close-sale-product option").forEach((option) => option.selected = option.text.startsWith("Espresso")), true`))
	ops.click("#close-sale button")
	ops.waitFor("#close-sale-result", "the deadline of 1 unpaid order moves forward to")
	page.front()
	page.waitFor(aOrder+" .countdown", "0:")
	page.waitFor(aOrder+" .timeline", "deadline brought forward by the shop")
	ops.front()
	ops.click("#close-sale button")
	ops.waitFor("#close-sale-result", "no unpaid order has more than a minute left")
}

// TestPageRefundFails pays a wrong amount, which the provider cannot return. An operator tries the refund again.
func TestPageRefundFails(t *testing.T) {
	pageTest(t)
	s := newPaidSite(t, envTimeout+"=10m")
	ops := opsTab(t, s.shop)
	page := shopTab(t, s.shop)
	checkout := s.buy(page)
	session := value(page, chromedp.Evaluate[string](fmt.Sprintf(`document.querySelector(%q).href.split("/").at(-1)`, openCheckout)))
	s.control(t, http.MethodPost, "/sim/sessions/"+session+"/amount", `{"amount_cents": 2000}`)
	s.turn(t, "refunds", "fail")
	page.pay(checkout)
	page.waitFor(aOrder, "Your payment of €20.00 does not match the order and could not be refunded automatically. The shop's staff is taking care of it.")
	ops.front()
	ops.waitFor("#failed-refunds", "€20.00 for the order")
	s.turn(t, "refunds", "succeed")
	ops.click("#failed-refund-list button")
	ops.until("no failed refund", func() bool { return ops.count("#failed-refunds:not([hidden])") == 0 })
	ops.waitFor("#money", "returned\n€20.00")
	page.front()
	page.waitFor(aOrder, "was refunded at")
}

// TestPageProviderFaults turns the knobs of the demo's payment provider on the operators' page.
func TestPageProviderFaults(t *testing.T) {
	pageTest(t)
	page := opsTab(t, demo(t, nil))
	page.waitFor("#provider-state", "Provider: up")
	page.waitFor("#ledger", "The provider's own ledger: captured nothing, returned nothing. The two ledgers agree.")
	for fault, want := range map[string]string{"provider-down": "stopped", "provider-hung": "hangs", "provider-loses-answers": "loses its answers"} {
		page.click(`[data-fault="` + fault + `"]`)
		page.waitFor("#provider-state", want)
	}
	page.click(`[data-fault="provider-up"]`)
	page.waitFor("#provider-state", "Provider: up")
	for _, mode := range []string{"lost", "doubled", "late", "reordered", "normal"} {
		button := `[data-fault="webhooks-` + mode + `"]`
		page.click(button)
		page.waitFor("#webhooks-state", mode)
		if page.count(button+`[aria-pressed="true"]`) != 1 {
			t.Errorf("the button of the webhooks %s is not pressed", mode)
		}
	}
}
