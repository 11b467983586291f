package e2e

import (
	"testing"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
)

// TestPageReconnects kills the service while a page is live, and starts another process at the same address. The page
// must show that, and go on without a reload.
func TestPageReconnects(t *testing.T) {
	shoptest.PageTest(t)
	s := orders.NewSite(t, testenv.Redis(t), faulttest.EnvHTTPAddr+"="+faulttest.FreeAddress(t), envTimeout+"=10m")
	p := s.Serve(t)
	page := shoptest.ShopTab(t, p)
	still := page.MarkDocument()
	page.Click(shoptest.BuyBeans)
	page.WaitFor(shoptest.AnOrder, "left to pay")
	page.Expect("ERR_") // connections are refused or reset
	p.Kill()
	page.WaitFor(shoptest.Connection, "Reconnecting…")
	page.WaitFor("#messages", "The service does not answer")
	s.Serve(t)
	page.WaitFor(shoptest.Connection, "Live")
	page.Until("the message disappears", func() bool { return page.Text("#messages") == "" })
	page.Click(shoptest.PayOrder)
	page.WaitFor(shoptest.AnOrder, "Paid at")
	if !still() {
		t.Error("the page reloaded itself")
	}
}
