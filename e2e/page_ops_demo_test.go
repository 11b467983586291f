package e2e

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv/browsertest"
)

// faultsDrawer opens and closes the drawer of faults.
const faultsDrawer = "#faults summary"

// faultsTab opens the operators' page of the demo, and there the drawer of faults.
func faultsTab(t *testing.T, p *faulttest.Process) *browsertest.Tab {
	t.Helper()
	page := shoptest.OpsTab(t, p)
	page.Click(faultsDrawer)
	return page
}

// TestPageDemo has both pages of the demo open while the worker pauses, and while Redis is down. It checks the look of
// both. With -screenshots it takes the README's screenshots.
func TestPageDemo(t *testing.T) {
	shoptest.PageTest(t)
	p := demo(t, nil, timeoutFlag, "30s")
	ops := faultsTab(t, p)
	if shown := browsertest.Run(ops, chromedp.Location()); strings.Contains(shown, p.OpsToken) {
		t.Errorf("the page leaves the token in its address: %s", shown)
	}
	shop := shoptest.ShopTab(t, p)
	checkLooks(ops, shop)
	pauseWorker(t, ops)
	stopRedis(t, ops, shop)
}

// checkLooks checks both pages, with an order in each state on the customers' page: every control must have a name,
// every text must have enough contrast, and no page may be wider than the screen.
func checkLooks(ops, shop *browsertest.Tab) {
	shop.Click(shoptest.BuyBeans)
	shop.Click(shoptest.PayOrder)
	shop.WaitFor(shoptest.AnOrder, "Paid at")
	shop.Click(`button[aria-label^="Buy Porcelain"]`)
	shop.Until("two orders", func() bool { return shop.Count(shoptest.AnOrder) == 2 })
	shop.Click(shoptest.CancelOrder)
	shop.WaitFor(shoptest.AnOrder, "Cancelled by you")
	shop.Click(`button[aria-label^="Buy Moka"]`)
	shop.Until("three orders", func() bool { return shop.Count(shoptest.AnOrder) == 3 })
	shop.Click(shoptest.AnOrder + `:nth-child(3) summary`)
	shop.WaitFor(shoptest.AnOrder+":nth-child(3) .timeline", "paid by you")
	shop.CheckLook("shop")

	ops.Front()
	ops.Click(`[data-fault="place-orders"]`)
	ops.WaitFor("#log", "1,000 orders are placed")
	ops.CheckLook("ops")
}

// pauseWorker pauses the worker and lets it go on, and starts a sweep.
func pauseWorker(t *testing.T, ops *browsertest.Tab) {
	t.Helper()
	ops.Click(`[data-fault="worker-pause"]`)
	ops.WaitFor("#worker-state", "paused")
	if !browsertest.Eval[bool](ops, `document.activeElement.dataset.fault === "worker-pause"`) {
		t.Error("the pressed button has lost the focus")
	}
	ops.Click(`[data-fault="worker-resume"]`)
	ops.Until("the worker is not paused any more",
		func() bool { return !strings.Contains(ops.Text("#worker-state"), "paused") })
	ops.Expect("409") // the reconciler may be sweeping
	ops.Until("a sweep", func() bool {
		ops.Click("#sweep-now")
		return strings.Contains(ops.Text("#log"), "Swept.")
	})
	ops.WaitFor("#sweep", "examined")
}

// stopRedis stops Redis, and starts it again. Meanwhile the customers' page polls, and an order times out.
func stopRedis(t *testing.T, ops, shop *browsertest.Tab) {
	t.Helper()
	ops.Click(`[data-fault="redis-stop"]`)
	ops.WaitFor("#schedule-text", "Redis does not answer")
	shop.Front()
	shop.WaitFor(shoptest.Connection, "No live updates: refreshed every 3 s")
	orders := shop.Count(shoptest.AnOrder)
	shop.Click(shoptest.BuyBeans)
	shop.Until("another order", func() bool { return shop.Count(shoptest.AnOrder) == orders+1 })
	if left := shop.Text(shoptest.AnOrder + " .countdown"); !strings.HasPrefix(left, "0:") {
		t.Errorf("the countdown is %q right after the order, want 0:…", left)
	}
	shop.WaitFor(shoptest.AnOrder, "Cancelled: not paid in time") // by the reconciler, and without a notification
	ops.Front()
	ops.Click(`[data-fault="redis-start"]`)
	ops.Until("Redis is up",
		func() bool { return !strings.Contains(ops.Text("#schedule-text"), "Redis does not answer") })
	shop.Front()
	shop.WaitFor(shoptest.Connection, "Live")
}
