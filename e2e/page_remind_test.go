package e2e

import (
	"testing"

	"example.com/shop/internal/testenv"
)

// TestPageReminds leaves an order unpaid until the worker has sent the reminder, which the page must show.
func TestPageReminds(t *testing.T) {
	pageTest(t)
	page := shopTab(t, orders.NewSite(t, testenv.Redis(t), envTimeout+"=18s").Serve(t))
	page.click(buyBeans)
	page.click(aOrder + " summary")
	page.waitFor(aOrder+" .timeline", "reminder sent by the worker")
}
