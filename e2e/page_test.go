package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/browsertest"
)

const extendOrder = shoptest.AnOrder + ` [data-action="extend"]`

// slowSite returns a process whose orders do not time out during a test, even on a slow machine.
func slowSite(t *testing.T) *faulttest.Process {
	t.Helper()
	return orders.NewSite(t, testenv.Redis(t), envTimeout+"=10m").Serve(t)
}

// TestPage is the scenario of the customers' page that go test runs without TEST_ALL, too. The customer pays one
// order, cancels one, extends the deadline of one, and leaves one unpaid. The page must show each step without a
// reload.
func TestPage(t *testing.T) {
	shoptest.NeedPages(t)
	page := shoptest.ShopTab(t, orders.NewSite(t, testenv.Redis(t), envTimeout+"=12s",
		faulttest.EnvPrefix+"ORDER_EXTENSION=2m", faulttest.EnvPrefix+"MAX_EXTENSIONS=2").Serve(t))
	still := page.MarkDocument()
	page.WaitFor("#products", "10,000 left")
	orders := 0
	buy := func(left string) {
		t.Helper()
		orders++
		page.Click(shoptest.BuyBeans)
		more := func() bool { return page.Count(shoptest.AnOrder) == orders } // the newest comes first
		page.Until(fmt.Sprintf("%d orders", orders), more)
		page.WaitFor("#products", left)
	}
	buy("9,999 left")
	page.Click(shoptest.PayOrder)
	page.WaitFor(shoptest.AnOrder, "Paid at")

	buy("9,998 left")
	page.Click(shoptest.CancelOrder)
	page.WaitFor(shoptest.AnOrder, "Cancelled by you")
	page.WaitFor("#products", "9,999 left")

	buy("9,998 left")
	page.Click(extendOrder)
	page.WaitFor(shoptest.AnOrder+" .countdown", "2:")
	page.Click(shoptest.AnOrder + " summary")
	page.WaitFor(shoptest.AnOrder+" .timeline", "by you")
	page.WaitFor(shoptest.AnOrder+` [data-action="extend"]`, "(1 extension left)")
	page.Click(extendOrder)
	page.WaitFor(shoptest.AnOrder+" .countdown", "4:")
	page.Until("no third extension", func() bool {
		return page.Count(shoptest.AnOrder+`:first-child [data-action="extend"]:not([hidden])`) == 0
	})

	buy("9,997 left")
	page.WaitFor(shoptest.AnOrder+" .countdown", "0:")
	left := page.Text(shoptest.AnOrder + " .countdown")
	page.Until("the countdown changes", func() bool { return page.Text(shoptest.AnOrder+" .countdown") != left })
	page.WaitFor(shoptest.AnOrder, "Cancelled: not paid in time")
	page.WaitFor("#products", "9,998 left")
	page.Click(shoptest.AnOrder + " summary")
	// worker; on a slow machine perhaps by the reconciler
	page.WaitFor(shoptest.AnOrder+" .timeline", "cancelled by the ")
	if !still() {
		t.Error("the page reloaded itself")
	}
	// The cookie alone decides who the customer is, so that a page without its storage shows the same orders.
	browsertest.Eval[bool](page, `localStorage.clear() ?? true`)
	page.Reload()
	page.WaitFor(shoptest.AnOrder+":nth-child(4)", "Paid at")
}

// TestPageInOtherBrowsers opens one shop in browsers that are not as usual: the first denies storage to the page; the
// clock of the second is two hours ahead, and the countdown must follow the server's clock; the third has no mouse.
func TestPageInOtherBrowsers(t *testing.T) {
	shoptest.PageTest(t)
	p := slowSite(t)
	page := shoptest.NewTab(t)
	page.Script(`Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('denied', 'SecurityError'); } });`)
	page.Navigate(p.URL)
	page.WaitFor("#messages", "needs cookies")
	page.WaitFor("#products", "Espresso beans")

	page = shoptest.NewTab(t)
	page.Script(`const now = Date.now; Date.now = () => now() + 2 * 3600_000;`)
	page.Navigate(p.URL)
	page.WaitFor(shoptest.Connection, shoptest.Connected)
	page.Click(shoptest.BuyBeans)
	page.WaitFor(shoptest.AnOrder+" .countdown", "9:5")

	page = shoptest.ShopTab(t, p)
	tabTo := func(name string) {
		t.Helper()
		page.Until("focus on "+name, func() bool {
			page.Press(kb.Tab)
			focused := `document.activeElement.getAttribute("aria-label") ?? document.activeElement.textContent`
			return strings.HasPrefix(browsertest.Eval[string](page, focused), name)
		})
	}
	tabTo("Skip to the content")
	tabTo("Buy Espresso")
	page.Press(kb.Enter)
	page.WaitFor(shoptest.AnOrder, "left to pay")
	tabTo("Pay €21.90")
	page.Press(kb.Enter)
	page.WaitFor(shoptest.AnOrder, "Paid at")
	page.WaitFor("#announcer", "Paid at") // the live region, which screen readers read out
	page.Until("the focus is in the order", func() bool {
		return browsertest.Eval[bool](page, `document.activeElement.closest(".order") !== null`)
	})
	tabTo("Timeline")
	page.Press(kb.Enter)
	page.WaitFor(shoptest.AnOrder+" .timeline", "paid by you")
}
