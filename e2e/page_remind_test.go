package e2e

import (
	"testing"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/testenv"
)

// TestPageReminds leaves an order unpaid until only seconds are left. The page must say so, also to screen readers,
// and show that the worker has sent the reminder.
func TestPageReminds(t *testing.T) {
	shoptest.PageTest(t)
	page := shoptest.ShopTab(t, orders.NewSite(t, testenv.Redis(t), envTimeout+"=18s").Serve(t))
	page.Click(shoptest.BuyBeans)
	page.Click(shoptest.AnOrder + " summary")
	page.WaitFor(shoptest.AnOrder+" .state", "Only seconds left to pay")
	page.WaitFor("#announcer", "seconds left to pay")
	page.WaitFor(shoptest.AnOrder+" .timeline", "reminder sent by the worker")
}
