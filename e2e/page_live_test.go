package e2e

import (
	"fmt"
	"strings"
	"testing"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/browsertest"
)

// TestPageReconnects has the page lose its stream in three ways. It hides the tab: the page must close the stream, and
// be up to date when the tab is shown again. It kills the service, and starts another process at the same address: the
// page must show that, and go on without a reload. It does so again with another token key, so that the page's token
// is invalid: the page must sign up as a new customer.
func TestPageReconnects(t *testing.T) {
	shoptest.PageTest(t)
	s := orders.NewSite(t, testenv.Redis(t), faulttest.EnvHTTPAddr+"="+faulttest.FreeAddress(t), envTimeout+"=10m")
	p := s.Serve(t)
	page := shoptest.ShopTab(t, p)
	still := page.MarkDocument()
	hideAndShow(t, p, page)

	page.Expect("ERR_") // connections are refused or reset
	page.Click(shoptest.BuyBeans)
	page.WaitFor(shoptest.AnOrder, "left to pay")
	p.Kill()
	page.WaitFor(shoptest.Connection, "Reconnecting…")
	page.WaitFor("#messages", "The service does not answer")
	p = s.Serve(t)
	page.WaitFor(shoptest.Connection, "Live")
	page.Until("the message disappears", func() bool { return page.Text("#messages") == "" })
	page.Click(shoptest.PayOrder)
	page.WaitFor(shoptest.AnOrder, "Paid at")
	if text := page.Text("#messages"); text != "" || !still() {
		t.Errorf("after the outage: message %q, page not reloaded: %v; want no message and no reload", text, still())
	}

	page.Expect("401")
	p.Kill()
	page.WaitFor("#messages", "The service does not answer")
	orders.Start(t, orders.Command(t, s.Env, "serve", "--token-key", "another-key-"+faulttest.TokenKey))
	page.WaitFor(shoptest.Connection, shoptest.Connected)
	page.WaitFor("#orders", "No orders yet")
	page.Click(shoptest.BuyBeans)
	page.WaitFor(shoptest.AnOrder, "left to pay")
}

// hideAndShow hides the tab, sells a product to another customer, and shows the tab.
func hideAndShow(t *testing.T, p *faulttest.Process, page *browsertest.Tab) {
	t.Helper()
	streams := func(n string) {
		t.Helper()
		faulttest.Eventually(t, n+" open streams", func() bool {
			return strings.Contains(string(p.Operator().Get("/metrics").Body), "\nshop_feed_streams "+n+"\n")
		})
	}
	show := func(hidden bool) {
		t.Helper()
		browsertest.Eval[bool](page, fmt.Sprintf(
			`Object.defineProperty(document, "hidden", {value: %t, configurable: true}), document.dispatchEvent(new Event("visibilitychange"))`, hidden))
	}
	streams("1")
	show(true)
	streams("0")
	browsertest.Eval[bool](page, `window.dispatchEvent(new Event("online"))`)
	place(p.SignUp())
	page.WaitFor("#products", "10,000 left")
	streams("0")
	show(false)
	page.WaitFor("#products", "9,999 left")
	page.WaitFor(shoptest.Connection, "Live")
	streams("1")
}
