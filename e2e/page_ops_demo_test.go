package e2e

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/faulttest"
)

func init() { notServed = append(notServed, "/ops/api/faults") }

// faultsDrawer opens and closes the drawer of faults.
const faultsDrawer = "#faults summary"

// faultsTab opens the operators' page of the demo, and there the drawer of faults.
func faultsTab(t *testing.T, p *faulttest.Process) *tab {
	t.Helper()
	page := opsTab(t, p)
	page.click(faultsDrawer)
	return page
}

// TestPageWipe places orders and wipes Redis on the operators' page. The reconciler must repair the queue, and the
// worker must cancel the orders on time.
func TestPageWipe(t *testing.T) {
	pageTest(t)
	p := demo(t, nil, timeoutFlag, "20s")
	page := faultsTab(t, p)
	if shown := value(page, chromedp.Location()); strings.Contains(shown, p.OpsToken) {
		t.Errorf("the page leaves the token in its address: %s", shown)
	}
	page.click(`[data-fault="place-orders"]`)
	page.waitFor("#log", "1,000 orders are placed")
	faulttest.Eventually(t, "all tasks are in Redis", func() bool { return p.Operator().Stats().Outbox.Backlog == 0 })
	page.click(`[data-fault="redis-wipe"]`)
	page.waitFor("#log", "Redis is wiped")
	faulttest.Eventually(t, "the reconciler has scheduled the lost tasks again", func() bool {
		return strings.Contains(string(p.Operator().Get("/metrics").Body), `shop_reconcile_repairs_total{kind="`+orders.Kind+`",reason="missing"} 1000`)
	})
	waitForWorker(page)
	page.waitFor(`[data-stat="pending"]`, "0")
	page.until("all invariants hold, at least 4", func() bool {
		all := page.count("#invariants li")
		return all >= 4 && page.count("#invariants .holds") == all
	})
}

// waitForWorker waits until all orders of the fault place-orders are cancelled, most of them by the worker. On a slow machine the
// reconciler may cancel the others.
func waitForWorker(page *tab) {
	page.t.Helper()
	cancelled := func(by string) int {
		n, _ := strconv.Atoi(strings.ReplaceAll(page.text(`[data-stat="`+by+`"]`), ",", "")) // a dash stands for no figure
		return n
	}
	page.until("all 1,000 orders are cancelled, most by the worker", func() bool {
		worker := cancelled("by-worker")
		return worker+cancelled("by-reconciler") == 1000 && worker > 500
	})
}

// TestPageFaults injects and ends the demo's faults on the page.
func TestPageFaults(t *testing.T) {
	pageTest(t)
	page := faultsTab(t, demo(t, nil))
	page.click(`[data-fault="redis-stop"]`)
	page.waitFor("#redis-node", "down")
	page.click(`[data-fault="redis-start"]`)
	page.until("Redis is up", func() bool { return !strings.Contains(page.text("#redis-node"), "down") })
	page.click(`[data-fault="worker-pause"]`)
	page.waitFor(".worker", "paused")
	if !value(page, chromedp.Evaluate[bool](`document.activeElement.dataset.fault === "worker-pause"`)) {
		t.Error("the pressed button has lost the focus")
	}
	page.click(`[data-fault="worker-resume"]`)
	page.until("the worker is not paused any more", func() bool { return !strings.Contains(page.text(".worker"), "paused") })
	page.expect("409") // the reconciler may be sweeping
	page.until("a sweep", func() bool {
		page.click("#sweep-now")
		return strings.Contains(page.text("#log"), "Swept.")
	})
	page.waitFor("#sweep", "examined")
}

// payNow is the button that pays an order without leaving the page. With a payment provider, payOrder leaves it.
var payNow = payOrder

// payAnother begins to pay the newest order in another way, if the shop has one.
var payAnother = func(*tab) {}

// TestPageAccessible checks both pages, wide and narrow, light and dark. Every control must have a name, every text
// must have enough contrast, and no page may be wider than the screen. With -screenshots it takes the README's
// screenshots.
func TestPageAccessible(t *testing.T) {
	pageTest(t)
	p := demo(t, nil, timeoutFlag, "20s")
	ops := faultsTab(t, p)
	ops.click(`[data-fault="place-orders"]`)
	ops.waitFor("#log", "1,000 orders are placed")
	ops.click(`[data-fault="redis-wipe"]`)
	waitForWorker(ops)

	shop := shopTab(t, p)
	shop.click(buyBeans)
	shop.click(payNow)
	shop.waitFor(aOrder, "Paid at")
	shop.click(`button[aria-label^="Buy Porcelain"]`)
	shop.until("two orders", func() bool { return shop.count(aOrder) == 2 })
	shop.click(cancelOrder)
	shop.waitFor(aOrder, "Cancelled by you")
	shop.click(`button[aria-label^="Buy Moka"]`)
	shop.until("three orders", func() bool { return shop.count(aOrder) == 3 })
	shop.click(aOrder + `:nth-child(3) summary`)
	shop.waitFor(aOrder+":nth-child(3) .timeline", "paid by you")
	payAnother(shop)

	ops.click(`[data-fault="place-orders"]`)
	ops.waitFor(`[data-stat="scheduled"]`, "1,00")

	for name, page := range map[string]*tab{"shop": shop, "ops": ops} {
		t.Run(name, func(t *testing.T) { page.checkLook(t, name) })
	}
}

// TestPageFlashSale starts a flash sale on the operators' page while an order of the product is pending. The page must
// show the sale while it runs, and its result. The customers' page must show that the product is sold out.
func TestPageFlashSale(t *testing.T) {
	pageTest(t)
	p := demo(t, nil, timeoutFlag, "5m")
	c := p.SignUp()
	c.Expect(http.StatusCreated, orders.Create(orders.Bodies[2], "")) // two of the product
	page := shopTab(t, p)
	ops := open(t, "about:blank")
	ops.script(runningSale)
	ops.do(chromedp.Navigate(p.URL + "/ops#token=" + p.OpsToken))
	ops.click(faultsDrawer)
	ops.waitFor("#flash-sale", "Hand grinder: sold 100, refused 1,150 (1,149 out of stock, 1 too many open orders), 1.3 s so far")
	answered := func() float64 {
		return value(ops, chromedp.Evaluate[float64](`document.querySelector("#flash-sale progress").position`))
	}
	if got := answered(); got != 0.25 {
		t.Errorf("the bar shows that %v of the customers have an answer, want a quarter", got)
	}
	if ops.count(startSale+`[aria-disabled="true"]`) != 1 {
		t.Error("the page offers to start a flash sale while one runs")
	}
	ops.screenshot("sale-ops-running")
	value(ops, chromedp.Evaluate[bool](`window.ended = true`))
	ops.until("no flash sale", func() bool { return ops.count("#flash-sale[hidden]") == 1 })
	ops.click(startSale)
	ops.waitFor("#flash-sale", "Hand grinder: sold exactly 100, refused 4,900 (out of stock), took ")
	ops.waitFor("#log", "Flash sale of the Hand grinder: sold exactly 100")
	page.front()
	page.waitFor(`[data-product="`+shoptest.Grinder+`"] .stock`, "Sold out")
	if n := shoptest.Available(c, shoptest.Grinder); n != 0 {
		t.Errorf("after the flash sale %d are available, want 0", n)
	}
	operator := p.Operator()
	type result struct {
		FlashSale struct {
			Sold, Failed, Returned int
			Refused                map[string]int
		} `json:"flash_sale"`
	}
	sale := faulttest.Decode[result](t, operator.Get("/ops/api/faults")).FlashSale
	if sale.Sold != 100 || sale.Refused["out-of-stock"] != 4900 || sale.Failed != 0 || sale.Returned != 0 {
		t.Errorf("the result is %+v, want 100 sold and 4,900 out of stock", sale)
	}
	stats := faulttest.Decode[struct{ Orders struct{ Pending int } }](t, operator.Get("/ops/api/stats"))
	if stats.Orders.Pending != 101 {
		t.Errorf("after the flash sale %d orders are pending, want 101: those of the sale and the one before it", stats.Orders.Pending)
	}
	ops.front()
	ops.until("all invariants hold", func() bool { return ops.count("#invariants li") == ops.count("#invariants .holds") })
	ops.checkLook(t, "sale-ops")
	if answered() != 1 || ops.count(startSale+`[aria-disabled="false"]`) != 1 {
		t.Errorf("the page shows the flash sale as running after its end: %s", ops.text("#flash-sale"))
	}
	operator.Post(http.StatusAccepted, "/ops/api/faults/flash-sale") // while the orders of the first one are pending
}

const startSale = `[data-fault="flash-sale"]`

// runningSale is a script that shows the page a flash sale that runs, until window.ended is true. A real sale may end
// before the page has seen it.
const runningSale = `{
	const real = window.fetch;
	window.fetch = async (path, options) => {
		const answer = await real(path, options);
		if (path !== '/ops/api/faults' || window.ended) {
			return answer;
		}
		const sale = {
			running: true, product: 'Hand grinder', units: 100, customers: 5000, sold: 100,
			refused: { 'out-of-stock': 1149, 'too-many-open-orders': 1 }, failed: 0, returned: 0, seconds: 1.3,
		};
		return Response.json({ ...await answer.json(), flash_sale: sale });
	};
}`
