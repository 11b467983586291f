package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"example.com/shop/internal/browsertest"
	"example.com/shop/internal/testenv"
)

const (
	buyBeans    = `button[aria-label^="Buy Espresso"]`
	aOrder      = `#orders .order`
	payOrder    = aOrder + ` [data-action="pay"]`
	cancelOrder = aOrder + ` [data-action="cancel"]`
	extendOrder = aOrder + ` [data-action="extend"]`
	connection  = `#connection`
)

// pageTest begins a test of a page.
func pageTest(t *testing.T) {
	t.Helper()
	testenv.Slow(t, "pages in a browser")
	needsPages(t)
}

// needsPages skips a test of a page if the machine has no browser, or if E2E_BASE_URL is set. The test runs in
// parallel with others.
func needsPages(t *testing.T) {
	t.Helper()
	needsOrders(t)
	needsProcesses(t)
	browsertest.Need(t)
	t.Parallel()
}

// notServed are paths that a page requests to learn whether the service has them.
var notServed = []string{"/ops/api/faults", "/api/payments"}

// newTab opens an empty tab for a page of the shop.
func newTab(t *testing.T) *browsertest.Tab {
	t.Helper()
	page := browsertest.New(t)
	for _, path := range notServed {
		page.Expect("404", path)
	}
	return page
}

// open opens a page of the shop in a new tab, so as a new customer.
func open(t *testing.T, url string) *browsertest.Tab {
	t.Helper()
	page := newTab(t)
	page.Navigate(url)
	return page
}

// connected is what the shop's page shows when it learns of changes.
const connected = "Live"

// slowSite returns a process whose orders do not time out during a test, even on a slow machine.
func slowSite(t *testing.T) *process {
	t.Helper()
	return newSite(t, testenv.Redis(t), envTimeout+"=10m").serve(t)
}

// shopTab opens the shop's page, and waits until it learns of changes.
func shopTab(t *testing.T, p *process) *browsertest.Tab {
	t.Helper()
	page := open(t, p.url)
	page.WaitFor(connection, connected)
	page.WaitFor("#products", "Espresso beans")
	page.WaitFor("#orders", "No orders yet")
	return page
}

// TestPage is the scenario of the customers' page that go test runs without TEST_ALL, too. The customer pays one
// order, cancels one, extends the deadline of one, and leaves one unpaid. The page must show each step without a
// reload.
func TestPage(t *testing.T) {
	needsPages(t)
	page := shopTab(t, newSite(t, testenv.Redis(t), envTimeout+"=12s", envPrefix+"ORDER_EXTENSION=2m").serve(t))
	still := page.MarkDocument()
	page.WaitFor("#products", "10,000 left")
	orders := 0
	buy := func(left string) {
		t.Helper()
		orders++
		page.Click(buyBeans)
		more := func() bool { return page.Count(aOrder) == orders } // the newest comes first
		page.Until(fmt.Sprintf("%d orders", orders), more)
		page.WaitFor("#products", left)
	}
	buy("9,999 left")
	page.Click(payOrder)
	page.WaitFor(aOrder, "Paid at")

	buy("9,998 left")
	page.Click(cancelOrder)
	page.WaitFor(aOrder, "Cancelled by you")
	page.WaitFor("#products", "9,999 left")

	buy("9,998 left")
	page.Click(extendOrder)
	page.WaitFor(aOrder+" .countdown", "2:")
	page.Click(aOrder + " summary")
	page.WaitFor(aOrder+" .timeline", "deadline extended by you")
	if n := page.Count(aOrder + `:first-child [data-action="extend"]:not([hidden])`); n != 0 {
		t.Error("the customer can extend the deadline twice")
	}

	buy("9,997 left")
	page.WaitFor(aOrder+" .countdown", "0:")
	left := page.Text(aOrder + " .countdown")
	page.Until("the countdown changes", func() bool { return page.Text(aOrder+" .countdown") != left })
	page.WaitFor(aOrder, "Cancelled: not paid in time")
	page.WaitFor("#products", "9,998 left")
	page.Click(aOrder + " summary")
	page.WaitFor(aOrder+" .timeline", "cancelled by the ") // worker; on a slow machine perhaps by the reconciler
	if !still() {
		t.Error("the page reloaded itself")
	}
	page.Reload()
	page.WaitFor(aOrder+":nth-child(4)", "Paid at")
}

// setQuantity fills in the quantity of a product.
func setQuantity(page *browsertest.Tab, product string, quantity int) {
	page.WaitFor("#products", product) // the page may be live before it shows the products
	const set = `document.querySelector('#products [aria-label^="Quantity of %s"]').value = %d`
	browsertest.Eval[int](page, fmt.Sprintf(set, product, quantity))
}

// TestPageSecondCustomer opens one shop as two customers. Each sees its own orders, and the same stock. Then an
// operator closes the sale of the product, and the page of the customer who has not paid must count down to the new
// deadline.
func TestPageSecondCustomer(t *testing.T) {
	pageTest(t)
	p := slowSite(t)
	first := shopTab(t, p)
	first.Click(buyBeans)
	first.WaitFor(aOrder, "left to pay")
	second := shopTab(t, p) // shopTab checks that it has no orders
	second.WaitFor("#products", "9,999 left")
	first.Click(payOrder)
	first.WaitFor(aOrder, "Paid at")
	second.Click(buyBeans)
	second.WaitFor(aOrder+" .countdown", "9:5")
	second.Click(aOrder + " summary")
	first.WaitFor("#products", "9,998 left")
	if first.Count(aOrder) != 1 || second.Count(aOrder) != 1 {
		t.Errorf("the customers see %d and %d orders, want one each", first.Count(aOrder), second.Count(aOrder))
	}

	ops := opsTab(t, p)
	ops.WaitFor("#close-sale-product", "Espresso beans")
	const chooseBeans = `document.querySelectorAll("#close-sale-product option").forEach(
		(option) => option.selected = option.text.startsWith("Espresso")), true`
	browsertest.Eval[bool](ops, chooseBeans)
	ops.Click("#close-sale button")
	ops.WaitFor("#close-sale-result", "the deadline of 1 unpaid order moves forward to")
	second.Front()
	second.WaitFor(aOrder+" .countdown", "0:")
	second.WaitFor(aOrder+" .timeline", "deadline brought forward by the shop")
	ops.Front()
	ops.Click("#close-sale button")
	ops.WaitFor("#close-sale-result", "no unpaid order has more than a minute left")
}

// TestPageInOtherBrowsers opens one shop in browsers that are not as usual: the first denies storage to the page; the
// clock of the second is two hours ahead, and the countdown must follow the server's clock; the third has no mouse.
func TestPageInOtherBrowsers(t *testing.T) {
	pageTest(t)
	p := slowSite(t)
	page := newTab(t)
	page.Script(`Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('denied', 'SecurityError'); } });`)
	page.Navigate(p.url)
	page.WaitFor("#messages", "needs cookies")
	page.WaitFor("#products", "Espresso beans")

	page = newTab(t)
	page.Script(`const now = Date.now; Date.now = () => now() + 2 * 3600_000;`)
	page.Navigate(p.url)
	page.WaitFor(connection, connected)
	page.Click(buyBeans)
	page.WaitFor(aOrder+" .countdown", "9:5")

	page = shopTab(t, p)
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
	page.WaitFor(aOrder, "left to pay")
	tabTo("Pay €21.90")
	page.Press(kb.Enter)
	page.WaitFor(aOrder, "Paid at")
	page.WaitFor("#announcer", "Paid at") // the live region, which screen readers read out
	page.Until("the focus is in the order", func() bool {
		return browsertest.Eval[bool](page, `document.activeElement.closest(".order") !== null`)
	})
	tabTo("Timeline")
	page.Press(kb.Enter)
	page.WaitFor(aOrder+" .timeline", "paid by you")
}
