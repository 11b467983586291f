package e2e

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/testenv"
)

const (
	buyBeans   = `button[aria-label^="Buy Espresso"]`
	aOrder     = `#orders .order`
	payOrder   = aOrder + ` button.primary`
	connection = `#connection`
)

// pageTest begins a test of the pages.
func pageTest(t *testing.T) {
	t.Helper()
	needsBrowser(t)
	t.Parallel()
}

// patient is a shop whose orders do not time out while a slow machine looks at them.
func patient(t *testing.T) *process {
	t.Helper()
	return newSite(t, testenv.Redis(t), "SHOP_ORDER_TIMEOUT=10m").serve(t)
}

// shopTab opens a shop, and waits until it is live.
func shopTab(t *testing.T, p *process) *tab {
	t.Helper()
	page := open(t, p.url)
	page.says(connection, "Live")
	page.says("#products", "Espresso beans")
	page.says("#orders", "No orders yet")
	return page
}

// opsTab opens the operators' view by the link that the demo prints.
func opsTab(t *testing.T, p *process) *tab {
	t.Helper()
	page := open(t, p.url+"/ops#token="+p.ops)
	page.says(connection, "Live")
	return page
}

// TestPageTimeout leaves an order unpaid and watches it go, without a reload.
func TestPageTimeout(t *testing.T) {
	pageTest(t)
	page := shopTab(t, newSite(t, testenv.Redis(t), "SHOP_ORDER_TIMEOUT=6s").serve(t))
	still := page.notReloaded()
	page.says("#products", "10,000 left")
	page.click(buyBeans)
	page.says(aOrder+" .countdown", "0:0")
	left := page.text(aOrder + " .countdown")
	page.until("a countdown that counts", func() bool { return page.text(aOrder+" .countdown") != left })
	page.says("#products", "9,999 left")
	page.says(aOrder, "Cancelled: not paid in time")
	page.says("#products", "10,000 left")
	page.click(aOrder + " summary")
	page.says(aOrder+" .timeline", "cancelled by the worker")
	if !still() {
		t.Error("the page was loaded again")
	}
}

func TestPagePay(t *testing.T) {
	pageTest(t)
	page := shopTab(t, patient(t))
	page.click(buyBeans)
	page.click(payOrder)
	page.says(aOrder, "Paid at")
	page.do(chromedp.Reload())
	page.says(aOrder, "Paid at")
	page.says("#products", "9,999 left")
}

func TestPageCancel(t *testing.T) {
	pageTest(t)
	page := shopTab(t, patient(t))
	page.click(buyBeans)
	page.click(aOrder + ` button:not(.primary)`)
	page.says(aOrder, "Cancelled by you")
	page.says("#products", "10,000 left")
}

// TestPagePaysTooLate pays when the deadline has passed but no worker has cancelled the order.
func TestPagePaysTooLate(t *testing.T) {
	pageTest(t)
	s := newSite(t, testenv.Redis(t), "SHOP_ORDER_TIMEOUT=1s")
	page := shopTab(t, s.serve(t, "--roles=api"))
	page.expect("409")
	page.click(buyBeans)
	page.says(aOrder, "The deadline has passed")
	page.click(payOrder)
	page.says(aOrder, "The order was not paid by its deadline")
	s.serve(t, "--roles=worker,relay")
	page.says(aOrder, "Cancelled: not paid in time")
}

// TestPageCountsByTheServersClock has a browser whose own clock is two hours ahead.
func TestPageCountsByTheServersClock(t *testing.T) {
	pageTest(t)
	p := newSite(t, testenv.Redis(t), "SHOP_ORDER_TIMEOUT=1m").serve(t)
	page := open(t, "about:blank")
	page.script(`const now = Date.now; Date.now = () => now() + 2 * 3600_000;`)
	page.do(chromedp.Navigate(p.url))
	page.says(connection, "Live")
	page.click(buyBeans)
	page.says(aOrder+" .countdown", "0:5")
}

// TestPageBuysOnce clicks twice, and loses answers: to a first try, and to one that a reload cuts off.
func TestPageBuysOnce(t *testing.T) {
	pageTest(t)
	page := shopTab(t, patient(t))
	settled := func(orders int) {
		t.Helper()
		page.until(fmt.Sprintf("%d orders, and no purchase that is not settled", orders), func() bool {
			return page.count(aOrder) == orders && value(page, chromedp.Evaluate[int](`sessionStorage.length`)) == 0
		})
		page.says("#products", fmt.Sprintf("9,99%d left", 10-orders))
	}
	// A mouse reports a double click as a click and then one that is the second.
	page.do(chromedp.Click(chromedp.CSS(buyBeans), chromedp.NodeEnabled), chromedp.DoubleClick(chromedp.CSS(buyBeans)))
	settled(1)

	page.script(answersOfOrders(`if (!window.lost) { window.lost = true; throw new TypeError('lost'); }`))
	page.do(chromedp.Reload())
	page.says(connection, "Live")
	page.click(buyBeans)
	settled(2)

	page.script(answersOfOrders(`await new Promise(() => {})`)) // which never comes
	page.do(chromedp.Reload())
	page.says(connection, "Live")
	page.click(buyBeans)
	page.until("three orders", func() bool { return page.count(aOrder) == 3 }) // the feed tells
	page.script(answersOfOrders(``))
	page.do(chromedp.Reload()) // while the page still waits: it asks again, with the same key
	page.says(connection, "Live")
	settled(3)
}

// answersOfOrders is a script that does something when an answer to a placed order has come.
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

// TestPageSecondCustomer has two customers look at one shop.
func TestPageSecondCustomer(t *testing.T) {
	pageTest(t)
	p := patient(t)
	first := shopTab(t, p)
	first.click(buyBeans)
	first.says(aOrder, "left to pay")
	second := shopTab(t, p) // has no orders
	second.says("#products", "9,999 left")
	first.click(payOrder)
	first.says(aOrder, "Paid at")
	second.click(buyBeans)
	second.says(aOrder, "left to pay")
	first.says("#products", "9,998 left")
	if first.count(aOrder) != 1 || second.count(aOrder) != 1 {
		t.Errorf("%d and %d orders, want each customer's own one", first.count(aOrder), second.count(aOrder))
	}
}

// TestPageWithoutRedis stops Redis under the page, and starts it again.
func TestPageWithoutRedis(t *testing.T) {
	pageTest(t)
	p := demo(t, nil, "--order-timeout", "6s")
	page := shopTab(t, p)
	p.operator().post(http.StatusNoContent, "/ops/api/faults/redis-stop")
	page.says(connection, "Redis is away: refreshed every 3 s")
	page.click(buyBeans)
	page.until("the first order", func() bool { return page.count(aOrder) == 1 })
	if left := page.text(aOrder + " .countdown"); !strings.HasPrefix(left, "0:0") {
		t.Errorf("%q are left to pay, before the page has been refreshed", left)
	}
	page.says(aOrder, "Cancelled: not paid in time") // by the reconciler, and without a hint
	p.operator().post(http.StatusNoContent, "/ops/api/faults/redis-start")
	page.says(connection, "Live")
}

// TestPageSleeps hides the tab: it gives its connection back, and is up to date when it is seen again.
func TestPageSleeps(t *testing.T) {
	pageTest(t)
	p := patient(t)
	page := shopTab(t, p)
	streams := func(n string) {
		t.Helper()
		eventually(t, n+" streams", func() bool {
			return strings.Contains(string(p.operator().get("/metrics").body), "\nshop_feed_streams "+n+"\n")
		})
	}
	show := func(hidden bool) {
		t.Helper()
		value(page, chromedp.Evaluate[bool](fmt.Sprintf(
			`Object.defineProperty(document, "hidden", {value: %t, configurable: true}), document.dispatchEvent(new Event("visibilitychange"))`, hidden)))
	}
	streams("1")
	show(true)
	streams("0")
	value(page, chromedp.Evaluate[bool](`window.dispatchEvent(new Event("online"))`))
	p.signUp().place()
	page.says("#products", "10,000 left")
	streams("0")
	show(false)
	page.says("#products", "9,999 left")
	page.says(connection, "Live")
	streams("1")
}

// TestPageSignsInAgain starts the service with another key under the page, which then is nobody's.
func TestPageSignsInAgain(t *testing.T) {
	pageTest(t)
	s := newSite(t, testenv.Redis(t), "SHOP_HTTP_ADDR="+freeAddress(t), "SHOP_ORDER_TIMEOUT=10m")
	p := s.serve(t)
	page := shopTab(t, p)
	page.expect("ERR_")
	page.expect("401")
	page.click(buyBeans)
	page.says(aOrder, "left to pay")
	p.kill()
	page.says(connection, "Reconnecting…")
	start(t, command(t, s.env, "serve", "--token-key", "another-key-"+tokenKey))
	page.says(connection, "Live")
	page.says("#orders", "No orders yet")
	page.click(buyBeans)
	page.says(aOrder, "left to pay")
}

// TestPageBuysAgain gives up a purchase whose answers are all lost, cancels what it made after all, and buys again.
func TestPageBuysAgain(t *testing.T) {
	pageTest(t)
	p := patient(t)
	page := open(t, "about:blank")
	page.script(answersOfOrders(`window.answers = (window.answers ?? 0) + 1; if (!window.found) { throw new TypeError('lost'); }`))
	answers := func(n int) { // four to each click
		page.until("all answers lost", func() bool { return value(page, chromedp.Evaluate[int](`window.answers ?? 0`)) == n })
		page.says("#messages", "may or may not be placed")
	}
	page.do(chromedp.Navigate(p.url))
	page.says(connection, "Live")
	page.ask("Espresso", 3)
	page.click(buyBeans)
	answers(4)
	page.click(buyBeans) // as it advises: the same three
	answers(8)
	page.says(aOrder, "3 × Espresso beans")
	if n := page.count(aOrder); n != 1 {
		t.Errorf("one purchase made %d orders", n)
	}
	page.click(aOrder + ` button:not(.primary)`)
	page.says(aOrder, "Cancelled by you")
	value(page, chromedp.Evaluate[bool](`window.found = true`))
	page.click(buyBeans)
	page.until("a second order", func() bool { return page.count(aOrder) == 2 })
	page.says(aOrder, "left to pay")
}

// ask fills in how many of a product are wanted.
func (p *tab) ask(product string, quantity int) {
	p.t.Helper()
	p.says("#products", product) // the page may be live before it shows them
	value(p, chromedp.Evaluate[int](fmt.Sprintf(`document.querySelector('#products [aria-label^="Quantity of %s"]').value = %d`, product, quantity)))
}

// TestPageProducts: what changes while someone is about to press a button stays in its place and keeps the focus.
func TestPageProducts(t *testing.T) {
	pageTest(t)
	s := newSite(t, testenv.Redis(t), "SHOP_ORDER_TIMEOUT=10m")
	page := shopTab(t, s.serve(t))
	page.expect("409") // of what is refused
	top := func() float64 {
		return value(page, chromedp.Evaluate[float64](`document.querySelector('`+buyBeans+`').getBoundingClientRect().top`))
	}
	before := top()
	page.ask("Barista", 7)
	page.click(`button[aria-label^="Buy Barista"]`)
	page.says("#messages", "7 wanted, 6 available")
	if after := top(); after != before {
		t.Errorf("a refusal moves a button from %v to %v", before, after)
	}

	page.ask("Barista", 6)
	page.do(chromedp.SendKeys(chromedp.CSS(`input[aria-label^="Quantity of Barista"]`), kb.Enter))
	page.says("#products", "Sold out")
	if !value(page, chromedp.Evaluate[bool](`document.activeElement.ariaLabel.startsWith("Quantity of Barista")`)) {
		t.Error("who bought the last ones has lost the focus")
	}
	page.click(`button[aria-label^="Buy Barista"]`)

	db, err := sql.Open("pgx", s.database)
	must(t, err)
	defer db.Close()
	_, err = db.ExecContext(t.Context(), `UPDATE products SET price_cents = 9990, name = 'Espresso beans, roasted today' WHERE name LIKE 'Espresso%'`)
	must(t, err)
	page.click(buyBeans)
	page.says(aOrder, "Pay €99.90")
	page.says("#products", "€99.90")
	page.says("#products", "roasted today")
	if n := page.count(aOrder); n != 2 {
		t.Errorf("%d orders, want 2", n)
	}
}

// TestPageWithoutCookies is in a browser that keeps nothing for the page.
func TestPageWithoutCookies(t *testing.T) {
	pageTest(t)
	p := patient(t)
	page := open(t, "about:blank")
	page.script(`Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('denied', 'SecurityError'); } });`)
	page.do(chromedp.Navigate(p.url))
	page.says("#messages", "needs cookies")
	page.says("#products", "Espresso beans")
}

// TestPageReconnects kills the service under the page. Another one comes up at the same address.
func TestPageReconnects(t *testing.T) {
	pageTest(t)
	s := newSite(t, testenv.Redis(t), "SHOP_HTTP_ADDR="+freeAddress(t), "SHOP_ORDER_TIMEOUT=10m")
	p := s.serve(t)
	page := shopTab(t, p)
	page.expect("ERR_") // of connections that are refused or reset
	still := page.notReloaded()
	page.click(buyBeans)
	page.says(aOrder, "left to pay")
	p.kill()
	page.says(connection, "Reconnecting…")
	page.says("#messages", "The service does not answer")
	s.serve(t)
	page.says(connection, "Live")
	page.until("no message any more", func() bool { return page.text("#messages") == "" })
	page.click(payOrder)
	page.says(aOrder, "Paid at")
	if text := page.text("#messages"); text != "" || !still() {
		t.Errorf("after the outage the page says %q", text)
	}
}

// freeAddress is one that nobody listens on, most likely for as long as the test takes.
func freeAddress(t *testing.T) string {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer free.Close()
	return free.Addr().String()
}

// TestPageWipe has an operator place orders and wipe Redis, and see the reconciler put the tasks back and the
// worker cancel the orders on time.
func TestPageWipe(t *testing.T) {
	pageTest(t)
	p := demo(t, nil, "--order-timeout", "20s")
	page := opsTab(t, p)
	if shown := value(page, chromedp.Location()); strings.Contains(shown, p.ops) {
		t.Errorf("the token stays in the address: %s", shown)
	}
	page.click(`[data-fault="place-orders"]`)
	page.says("#log", "1,000 orders are placed")
	page.click(`[data-fault="redis-wipe"]`)
	page.says("#log", "Redis is wiped")
	eventually(t, "lost tasks put back", func() bool {
		return strings.Contains(string(p.operator().get("/metrics").body), `shop_reconcile_repairs_total{kind="order.cancel",reason="missing"} 1000`)
	})
	page.says(`[data-stat="by-worker"]`, "1,000")
	page.says(`[data-stat="pending"]`, "0")
	if late := page.text(`[data-stat="by-reconciler"]`); late != "0" {
		t.Errorf("%s orders were too late for the worker", late)
	}
	if holds := page.count("#invariants .holds"); holds != 4 {
		t.Errorf("%d of 4 invariants hold: %s", holds, page.text("#invariants"))
	}
}

// TestPageFaults breaks the demo from the page, and mends it.
func TestPageFaults(t *testing.T) {
	pageTest(t)
	page := opsTab(t, demo(t, nil))
	page.click(`[data-fault="redis-stop"]`)
	page.says("#redis-node", "down")
	page.click(`[data-fault="redis-start"]`)
	page.until("Redis up", func() bool { return !strings.Contains(page.text("#redis-node"), "down") })
	page.click(`[data-fault="worker-pause"]`)
	page.says(".worker", "paused")
	if !value(page, chromedp.Evaluate[bool](`document.activeElement.dataset.fault === "worker-pause"`)) {
		t.Error("a button that was pressed has lost the focus")
	}
	page.click(`[data-fault="worker-resume"]`)
	page.until("the worker working", func() bool { return !strings.Contains(page.text(".worker"), "paused") })
	page.expect("409") // of a sweep that meets one of the reconciler's own
	page.until("a sweep", func() bool {
		page.click("#sweep-now")
		return strings.Contains(page.text("#log"), "Swept.")
	})
	page.says("#sweep", "examined")
}

// bury makes a dead letter.
func (s *site) bury(t *testing.T, id string) {
	t.Helper()
	rdb, err := delay.Connect(s.redis)
	must(t, err)
	defer rdb.Close()
	queue, err := delay.NewQueue(rdb, delay.Config{Kind: "order.cancel", Shards: 1})
	must(t, err)
	must(t, queue.Schedule(t.Context(), delay.In(id, 0)))
	batch, err := queue.Claim(t.Context(), 0, 1, time.Minute)
	must(t, err)
	n, err := queue.Bury(t.Context(), batch, delay.Burial{ID: id, Err: "as asked"})
	must(t, err)
	if n != 1 {
		t.Fatalf("%d buried", n)
	}
}

// TestPageRedrives has a task that no worker could do.
func TestPageRedrives(t *testing.T) {
	pageTest(t)
	s := newSite(t, testenv.Redis(t))
	s.bury(t, "a-task-of-nothing")
	p := s.serve(t, "--roles=api") // a reconciler would remove the task of no order
	page := open(t, p.url+"/ops")
	page.expect("401")
	page.says("#sign-in", "Operators' token")
	page.do(chromedp.SendKeys(chromedp.CSS("#token"), "not the token"+kb.Enter))
	page.says("#messages", "SHOP_OPS_TOKEN")
	page.do(chromedp.SendKeys(chromedp.CSS("#token"), opsToken+kb.Enter))
	page.says("#dead", "a-task-of-nothing")
	if page.count("#faults:not([hidden])") != 0 {
		t.Error("there are fault buttons outside the demo")
	}
	page.click("#dead button")
	page.says("#dead-hint", "None.")
}

// TestPageKeyboard orders and pays without a mouse.
func TestPageKeyboard(t *testing.T) {
	pageTest(t)
	page := shopTab(t, patient(t))
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
	page.says(aOrder, "left to pay")
	tabTo("Pay €21.90")
	page.do(chromedp.KeyEvent(kb.Enter))
	page.says(aOrder, "Paid at")
	page.says("#announcer", "Paid at") // to who does not see it
	page.until("the focus not lost", func() bool {
		return value(page, chromedp.Evaluate[bool](`document.activeElement.closest(".order") !== null`))
	})
	tabTo("Timeline")
	page.do(chromedp.KeyEvent(kb.Enter))
	page.says(aOrder+" .timeline", "paid by you")
}

// TestPageAccessible looks at both views, wide and narrow, in light and dark: everything that can be operated has a name,
// every text enough contrast, and nothing is wider than the screen. It makes the README's screenshots.
func TestPageAccessible(t *testing.T) {
	pageTest(t)
	p := demo(t, nil, "--order-timeout", "20s")
	ops := opsTab(t, p)
	ops.click(`[data-fault="place-orders"]`)
	ops.says("#log", "1,000 orders are placed")
	ops.click(`[data-fault="redis-wipe"]`)
	ops.says(`[data-stat="by-worker"]`, "1,000")

	shop := shopTab(t, p)
	shop.click(buyBeans)
	shop.click(payOrder)
	shop.says(aOrder, "Paid at")
	shop.click(`button[aria-label^="Buy Porcelain"]`)
	shop.until("two orders", func() bool { return shop.count(aOrder) == 2 })
	shop.click(aOrder + ` button:not(.primary)`)
	shop.says(aOrder, "Cancelled by you")
	shop.click(`button[aria-label^="Buy Moka"]`)
	shop.until("three orders", func() bool { return shop.count(aOrder) == 3 })
	shop.click(aOrder + `:nth-child(3) summary`)
	shop.says(aOrder+":nth-child(3) .timeline", "paid by you")

	ops.click(`[data-fault="place-orders"]`)
	ops.says(`[data-stat="scheduled"]`, "1,00")

	for name, page := range map[string]*tab{"shop": shop, "ops": ops} {
		t.Run(name, func(t *testing.T) {
			page.named(t)
			for _, view := range []struct {
				name          string
				width, height int64
				scheme        string
			}{{name, 1120, 900, "light"}, {name + "-dark", 1120, 900, "dark"}, {name + "-phone", 390, 844, "light"}, {name + "-phone-dark", 390, 844, "dark"}} {
				page.do(chromedp.EmulateViewport(view.width, view.height), colours(view.scheme))
				poor, err := os.ReadFile("testdata/contrast.js")
				must(t, err)
				for _, text := range value(page, chromedp.Evaluate[[]string](string(poor))) {
					t.Errorf("%s: contrast %s", view.name, text)
				}
				if wide := value(page, chromedp.Evaluate[int64](`document.scrollingElement.scrollWidth`)); wide > view.width {
					t.Errorf("%s: %d pixels wide on a screen of %d", view.name, wide, view.width)
				}
				page.keep(view.name)
			}
		})
	}
}

// operable are the roles of what one can do something with.
var operable = []string{"button", "link", "textbox", "spinbutton", "DisclosureTriangle", "checkbox", "combobox"}

// named checks the accessibility tree: landmarks, one level-one heading, and names for what can be operated, and for
// images.
func (p *tab) named(t *testing.T) {
	t.Helper()
	roles := map[string]int{}
	for _, node := range value(p, accessibilityTree) {
		if node.Ignored {
			continue
		}
		role, name := textOf(node.Role), textOf(node.Name)
		roles[role]++
		if slices.Contains(append(operable, "image", "heading"), role) && strings.TrimSpace(name) == "" {
			t.Errorf("a %s without a name", role)
		}
	}
	for role, want := range map[string]int{"main": 1, "banner": 1, "navigation": 1, "contentinfo": 1} {
		if roles[role] != want {
			t.Errorf("%d of the role %s, want %d", roles[role], role, want)
		}
	}
	if n := p.count("h1"); n != 1 {
		t.Errorf("%d headings of level one", n)
	}
	if roles["button"] < 3 || roles["heading"] < 4 {
		t.Errorf("roles %v: that is not the page", roles)
	}
}

// accessibilityTree is what a screen reader gets.
func accessibilityTree(ctx context.Context, target *chromedp.Target) ([]*accessibility.Node, error) {
	tree, err := cdp.Call(ctx, target, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	return tree.Nodes, err
}

// textOf is the text that a value of the tree is.
func textOf(v *accessibility.Value) (text string) {
	if v != nil {
		_ = json.Unmarshal(v.Value, &text)
	}
	return text
}

// colours has the page shown light or dark.
func colours(scheme string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	})
}
