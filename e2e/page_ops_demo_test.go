package e2e

import (
	"strconv"
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

// TestPageDemo has both pages of the demo open while Redis is wiped, while the worker pauses, and while Redis is down.
// It checks the look of both. With -screenshots it takes the README's screenshots.
func TestPageDemo(t *testing.T) {
	shoptest.PageTest(t)
	p := demo(t, nil, timeoutFlag, "30s") // Redis is wiped before most of the orders are due
	ops := faultsTab(t, p)
	if shown := browsertest.Run(ops, chromedp.Location()); strings.Contains(shown, p.OpsToken) {
		t.Errorf("the page leaves the token in its address: %s", shown)
	}
	wipeRedis(t, p, ops)
	shop := shoptest.ShopTab(t, p)
	checkLooks(ops, shop)
	pauseWorker(t, ops)
	stopRedis(t, ops, shop)
}

// wipeRedis places orders and wipes Redis on the operators' page. The reconciler must repair the queue, and the worker
// must cancel the orders on time.
func wipeRedis(t *testing.T, p *faulttest.Process, ops *browsertest.Tab) {
	t.Helper()
	ops.Click(`[data-fault="place-orders"]`)
	ops.WaitFor("#log", "1,000 orders are placed")
	faulttest.Eventually(t, "all tasks are in Redis", func() bool { return p.Operator().Stats().Outbox.Backlog == 0 })
	ops.Click(`[data-fault="redis-wipe"]`)
	ops.WaitFor("#log", "Redis is wiped")
	faulttest.Eventually(t, "each pending order has its task again, most from the reconciler", func() bool {
		stats := faulttest.Decode[struct { // of a moment at which some orders are pending, on a slow machine not all
			Orders struct{ Pending int }
			Queue  *struct{ Scheduled, Due, Leased int }
		}](t, p.Operator().Get("/ops/api/stats"))
		if stats.Queue == nil {
			return false
		}
		tasks := stats.Queue.Scheduled + stats.Queue.Due + stats.Queue.Leased
		repaired := p.Operator().Metric("reconcile_repairs_total", `kind="`+orders.Kind+`"`, `reason="missing"`)
		return tasks > 0 && tasks == stats.Orders.Pending && repaired > float64(tasks)/2
	})
	cancelled := func(by string) int {
		// a dash stands for no figure
		n, _ := strconv.Atoi(strings.ReplaceAll(ops.Text(`[data-stat="`+by+`"]`), ",", ""))
		return n
	}
	// On a slow machine the reconciler cancels some.
	ops.Until("all 1,000 orders are cancelled, most by the worker", func() bool {
		worker := cancelled("by-worker")
		return worker+cancelled("by-reconciler") == 1000 && worker > 500
	})
	ops.WaitFor(`[data-stat="pending"]`, "0")
	ops.Until("all invariants hold, at least 4", func() bool {
		all := ops.Count("#invariants li")
		return all >= 4 && ops.Count("#invariants .holds") == all
	})
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
	ops.Until("1,000 more orders are placed",
		func() bool { return strings.Count(ops.Text("#log"), "1,000 orders are placed") == 2 })
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
