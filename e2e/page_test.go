package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"example.com/shop/internal/faulttest"
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
	needsBrowser(t)
	t.Parallel()
}

// connected is what the shop's page shows when it learns of changes. Without live notifications it polls.
var connected = "Refreshed every 3 s"

// slowSite returns a process whose orders do not time out during a test, even on a slow machine.
func slowSite(t *testing.T) *faulttest.Process {
	t.Helper()
	return orders.NewSite(t, testenv.Redis(t), envTimeout+"=10m").Serve(t)
}

// shopTab opens the shop's page, and waits until it learns of changes.
func shopTab(t *testing.T, p *faulttest.Process) *tab {
	t.Helper()
	page := open(t, p.URL)
	page.waitFor(connection, connected)
	page.waitFor("#products", "Espresso beans")
	page.waitFor("#orders", "No orders yet")
	return page
}

// TestPageTimeout leaves an order unpaid. The page must count down and show that the order is cancelled, without a
// reload.
func TestPageTimeout(t *testing.T) {
	pageTest(t)
	page := shopTab(t, orders.NewSite(t, testenv.Redis(t), envTimeout+"=12s").Serve(t))
	still := page.markDocument()
	page.waitFor("#products", "10,000 left")
	page.click(buyBeans)
	page.waitFor("#products", "9,999 left")
	page.waitFor(aOrder+" .countdown", "0:")
	left := page.text(aOrder + " .countdown")
	page.until("the countdown changes", func() bool { return page.text(aOrder+" .countdown") != left })
	page.waitFor(aOrder, "Cancelled: not paid in time")
	page.waitFor("#products", "10,000 left")
	page.click(aOrder + " summary")
	page.waitFor(aOrder+" .timeline", "cancelled by the worker")
	if !still() {
		t.Error("the page reloaded itself")
	}
}

// TestPagePay pays an order. A reload shows it as paid too.
func TestPagePay(t *testing.T) {
	pageTest(t)
	page := shopTab(t, slowSite(t))
	page.click(buyBeans)
	page.click(payOrder)
	page.waitFor(aOrder, "Paid at")
	page.do(chromedp.Reload())
	page.waitFor(aOrder, "Paid at")
	page.waitFor("#products", "9,999 left")
}

// TestPageCancel cancels an order, and the page shows its stock as available again.
func TestPageCancel(t *testing.T) {
	pageTest(t)
	page := shopTab(t, slowSite(t))
	page.click(buyBeans)
	page.click(cancelOrder)
	page.waitFor(aOrder, "Cancelled by you")
	page.waitFor("#products", "10,000 left")
}

// TestPagePaysTooLate pays an order after its deadline, before a worker cancels it.
func TestPagePaysTooLate(t *testing.T) {
	pageTest(t)
	// The page must have the order before its deadline: afterwards the service tells it that the order cannot be paid.
	s := orders.NewSite(t, testenv.Redis(t), envTimeout+"=6s")
	page := shopTab(t, s.Serve(t, "--roles=api"))
	page.expect("409")
	page.click(buyBeans)
	page.waitFor(aOrder, "The deadline has passed")
	page.click(payOrder)
	page.waitFor(aOrder, "The order was not paid by its deadline")
	s.Serve(t, "--roles=worker,relay")
	page.waitFor(aOrder, "Cancelled: not paid in time")
}

// TestPageCountsByTheServersClock opens the page in a browser whose clock is two hours ahead. The countdown must follow
// the server's clock.
func TestPageCountsByTheServersClock(t *testing.T) {
	pageTest(t)
	p := orders.NewSite(t, testenv.Redis(t), envTimeout+"=1m").Serve(t)
	page := open(t, "about:blank")
	page.script(`const now = Date.now; Date.now = () => now() + 2 * 3600_000;`)
	page.do(chromedp.Navigate(p.URL))
	page.waitFor(connection, connected)
	page.click(buyBeans)
	page.waitFor(aOrder+" .countdown", "0:5")
}

// TestPageBuysOnce buys with a double click, with a lost response, and with a reload before the response. Each purchase
// must place one order.
func TestPageBuysOnce(t *testing.T) {
	pageTest(t)
	page := shopTab(t, slowSite(t))
	placed := func(orders int) {
		t.Helper()
		page.until(fmt.Sprintf("%d orders, and no purchase in progress", orders), func() bool {
			return page.count(aOrder) == orders && value(page, chromedp.Evaluate[int](`sessionStorage.length`)) == 0
		})
		page.waitFor("#products", fmt.Sprintf("9,99%d left", 10-orders))
	}
	// A browser reports a double click as a click, followed by a click with a count of two.
	page.do(chromedp.Click(chromedp.CSS(buyBeans), chromedp.NodeEnabled), chromedp.DoubleClick(chromedp.CSS(buyBeans)))
	placed(1)

	page.script(answersOfOrders(`if (!window.lost) { window.lost = true; throw new TypeError('lost'); }`))
	page.do(chromedp.Reload())
	page.waitFor(connection, connected)
	page.click(buyBeans)
	placed(2)

	page.script(answersOfOrders(`await new Promise(() => {})`)) // it never resolves
	page.do(chromedp.Reload())
	page.waitFor(connection, connected)
	page.click(buyBeans)
	page.until("three orders", func() bool { return page.count(aOrder) == 3 }) // a notification shows it
	page.script(answersOfOrders(``))
	page.do(chromedp.Reload()) // the page repeats the request with the same idempotency key
	page.waitFor(connection, connected)
	placed(3)
}

// answersOfOrders returns a script that runs some code each time a response to placing an order has come.
func answersOfOrders(do string) string {
	return fmt.Sprintf(`{
		const real = window.realFetch ??= window.fetch;
		window.fetch = async (path, options) => {
			const answer = await real(path, options);
			if (options.method === 'POST' && path === '/api/orders') { %s }
			return answer;
		};
	}`, do)
}

// TestPageSecondCustomer opens one shop as two customers. Each sees its own orders, and the same stock.
func TestPageSecondCustomer(t *testing.T) {
	pageTest(t)
	p := slowSite(t)
	first := shopTab(t, p)
	first.click(buyBeans)
	first.waitFor(aOrder, "left to pay")
	second := shopTab(t, p) // shopTab checks that it has no orders
	second.waitFor("#products", "9,999 left")
	first.click(payOrder)
	first.waitFor(aOrder, "Paid at")
	second.click(buyBeans)
	second.waitFor(aOrder, "left to pay")
	first.waitFor("#products", "9,998 left")
	if first.count(aOrder) != 1 || second.count(aOrder) != 1 {
		t.Errorf("the customers see %d and %d orders, want one each", first.count(aOrder), second.count(aOrder))
	}
}

// TestPageSignsInAgain restarts the service with another token key while the page is open. This invalidates the page's
// token, and the page must sign up as a new customer.
func TestPageSignsInAgain(t *testing.T) {
	pageTest(t)
	s := orders.NewSite(t, testenv.Redis(t), faulttest.EnvHTTPAddr+"="+faulttest.FreeAddress(t), envTimeout+"=10m")
	p := s.Serve(t)
	page := shopTab(t, p)
	page.expect("ERR_")
	page.expect("401")
	page.click(buyBeans)
	page.waitFor(aOrder, "left to pay")
	p.Kill()
	page.waitFor("#messages", "The service does not answer")
	orders.Start(t, orders.Command(t, s.Env, "serve", "--token-key", "another-key-"+faulttest.TokenKey))
	page.waitFor(connection, connected)
	page.waitFor("#orders", "No orders yet")
	page.click(buyBeans)
	page.waitFor(aOrder, "left to pay")
}

// TestPageBuysAgain loses all responses to a purchase until the page gives up. The order was placed nevertheless. The
// test cancels it and buys again, which must place a second order.
func TestPageBuysAgain(t *testing.T) {
	pageTest(t)
	p := slowSite(t)
	page := open(t, "about:blank")
	page.script(answersOfOrders(`window.answers = (window.answers ?? 0) + 1; if (!window.found) { throw new TypeError('lost'); }`))
	answers := func(n int) { // each click sends four requests
		page.until(fmt.Sprintf("%d responses lost", n), func() bool { return value(page, chromedp.Evaluate[int](`window.answers ?? 0`)) == n })
		page.waitFor("#messages", "may or may not be placed")
	}
	page.do(chromedp.Navigate(p.URL))
	page.waitFor(connection, connected)
	page.setQuantity("Espresso", 3)
	page.click(buyBeans)
	answers(4)
	page.click(buyBeans) // as the message advises; the quantity is still three
	answers(8)
	page.waitFor(aOrder, "3 × Espresso beans")
	if n := page.count(aOrder); n != 1 {
		t.Errorf("one purchase placed %d orders, want 1", n)
	}
	page.click(cancelOrder)
	page.waitFor(aOrder, "Cancelled by you")
	value(page, chromedp.Evaluate[bool](`window.found = true`))
	page.click(buyBeans)
	page.until("a second order", func() bool { return page.count(aOrder) == 2 })
	page.waitFor(aOrder, "left to pay")
}

// setQuantity fills in the quantity of a product.
func (p *tab) setQuantity(product string, quantity int) {
	p.t.Helper()
	p.waitFor("#products", product) // the page may be live before it shows the products
	value(p, chromedp.Evaluate[int](fmt.Sprintf(`document.querySelector('#products [aria-label^="Quantity of %s"]').value = %d`, product, quantity)))
}

// TestPageProducts checks that an update of the products moves neither the buttons nor the focus. The note about a
// rejected purchase must not move the button that the customer has pressed.
func TestPageProducts(t *testing.T) {
	pageTest(t)
	s := orders.NewSite(t, testenv.Redis(t), envTimeout+"=10m")
	page := shopTab(t, s.Serve(t))
	page.expect("409") // the rejected purchases
	top := func() float64 {
		return value(page, chromedp.Evaluate[float64](`document.querySelector('`+buyCourse+`').getBoundingClientRect().top`))
	}
	before := top()
	page.setQuantity("Barista", 7)
	page.click(buyCourse)
	page.waitFor(theCourse, "Your order of 7 was not placed: only 6 are left.")
	if after := top(); after != before {
		t.Errorf("the note about a rejected purchase moved the pressed button from %v to %v", before, after)
	}

	page.setQuantity("Barista", 6)
	page.do(chromedp.SendKeys(chromedp.CSS(`input[aria-label^="Quantity of Barista"]`), kb.Enter))
	page.waitFor("#products", "Sold out")
	if !value(page, chromedp.Evaluate[bool](`document.activeElement.ariaLabel.startsWith("Quantity of Barista")`)) {
		t.Error("after buying the last ones, the focus is not in the quantity any more")
	}
	page.click(buyCourse)

	testenv.Exec(t, faulttest.OpenDatabase(t, s.Database), `UPDATE products SET price_cents = 9990, name = 'Espresso shoptest.Beans, roasted today' WHERE name LIKE 'Espresso%'`)
	page.click(buyBeans)
	page.waitFor(aOrder, "Pay €99.90")
	page.waitFor("#products", "€99.90")
	page.waitFor("#products", "roasted today")
	if n := page.count(aOrder); n != 2 {
		t.Errorf("the page shows %d orders, want 2", n)
	}
}

// TestPageWithoutCookies opens the page in a browser that denies storage to it.
func TestPageWithoutCookies(t *testing.T) {
	pageTest(t)
	p := slowSite(t)
	page := open(t, "about:blank")
	page.script(`Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('denied', 'SecurityError'); } });`)
	page.do(chromedp.Navigate(p.URL))
	page.waitFor("#messages", "needs cookies")
	page.waitFor("#products", "Espresso beans")
}

// TestPageKeyboard orders and pays without a mouse.
func TestPageKeyboard(t *testing.T) {
	pageTest(t)
	page := shopTab(t, slowSite(t))
	tabTo := func(name string) {
		t.Helper()
		page.until("focus on "+name, func() bool {
			page.do(chromedp.KeyEvent(kb.Tab))
			focused := `document.activeElement.getAttribute("aria-label") ?? document.activeElement.textContent`
			return strings.HasPrefix(value(page, chromedp.Evaluate[string](focused)), name)
		})
	}
	tabTo("Skip to the content")
	tabTo("Buy Espresso")
	page.do(chromedp.KeyEvent(kb.Enter))
	page.waitFor(aOrder, "left to pay")
	tabTo("Pay €21.90")
	page.do(chromedp.KeyEvent(kb.Enter))
	page.waitFor(aOrder, "Paid at")
	page.waitFor("#announcer", "Paid at") // the live region, which screen readers read out
	page.until("the focus is in the order", func() bool {
		return value(page, chromedp.Evaluate[bool](`document.activeElement.closest(".order") !== null`))
	})
	tabTo("Timeline")
	page.do(chromedp.KeyEvent(kb.Enter))
	page.waitFor(aOrder+" .timeline", "paid by you")
}

// TestPageExtends waits until the deadline is near, and then extends it.
func TestPageExtends(t *testing.T) {
	pageTest(t)
	page := shopTab(t, orders.NewSite(t, testenv.Redis(t), envTimeout+"=18s", faulttest.EnvPrefix+"ORDER_EXTENSION=2m").Serve(t))
	page.click(buyBeans)
	page.click(aOrder + " summary")
	page.waitFor(aOrder+" .state", "Only seconds left to pay")
	page.waitFor("#announcer", "seconds left to pay")
	page.waitFor(extendOrder, "Extend by 2 minutes")
	page.click(extendOrder)
	page.waitFor(aOrder+" .countdown", "2:")
	page.waitFor(aOrder+" .timeline", "deadline extended by you")
	if page.count(extendOrder+":not([hidden])") != 0 {
		t.Error("the customer can extend the deadline twice")
	}
}

// checkLook checks the page as it is, wide and narrow, light and dark. The name is that of the screenshots.
func (p *tab) checkLook(t *testing.T, name string) {
	t.Helper()
	p.checkNames(t)
	for _, view := range []struct {
		name          string
		width, height int64
		scheme        string
	}{{name, 1120, 900, "light"}, {name + "-dark", 1120, 900, "dark"}, {name + "-phone", 390, 844, "light"}, {name + "-phone-dark", 390, 844, "dark"}} {
		p.do(chromedp.EmulateViewport(view.width, view.height), colours(view.scheme))
		poor, err := os.ReadFile("testdata/contrast.js")
		testenv.Must(t, err)
		for _, text := range value(p, chromedp.Evaluate[[]string](string(poor))) {
			t.Errorf("%s: too little contrast: %s", view.name, text)
		}
		if wide := value(p, chromedp.Evaluate[int64](`document.scrollingElement.scrollWidth`)); wide > view.width {
			t.Errorf("%s: the page is %d pixels wide on a screen of %d", view.name, wide, view.width)
		}
		p.screenshot(view.name)
	}
}

// controls are the roles of elements that a user can operate.
var controls = []string{"button", "link", "textbox", "spinbutton", "DisclosureTriangle", "checkbox", "combobox"}

// checkNames checks the accessibility tree. The tree must have landmarks, one heading of level one, and names for all
// controls, images and headings.
func (p *tab) checkNames(t *testing.T) {
	t.Helper()
	roles := map[string]int{}
	for _, node := range value(p, accessibilityTree) {
		if node.Ignored {
			continue
		}
		role, name := textOf(node.Role), textOf(node.Name)
		roles[role]++
		if slices.Contains(append(controls, "image", "heading"), role) && strings.TrimSpace(name) == "" {
			t.Errorf("a %s without a name", role)
		}
	}
	for role, want := range map[string]int{"main": 1, "banner": 1, "navigation": 1, "contentinfo": 1} {
		if roles[role] != want {
			t.Errorf("%d elements of the role %s, want %d", roles[role], role, want)
		}
	}
	if n := p.count("h1"); n != 1 {
		t.Errorf("%d headings of level one, want 1", n)
	}
	if roles["button"] < 2 || roles["heading"] < 4 {
		t.Errorf("roles %v: want at least 2 buttons and 4 headings", roles)
	}
}

// accessibilityTree returns the nodes that a screen reader reads.
func accessibilityTree(ctx context.Context, target *chromedp.Target) ([]*accessibility.Node, error) {
	tree, err := cdp.Call(ctx, target, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	return tree.Nodes, err
}

// textOf returns the text of a value in the accessibility tree.
func textOf(v *accessibility.Value) (text string) {
	if v != nil {
		_ = json.Unmarshal(v.Value, &text)
	}
	return text
}

// colours sets the colour scheme that the user prefers, light or dark.
func colours(scheme string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	})
}
