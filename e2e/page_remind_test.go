package e2e

import (
	"testing"

	"example.com/shop/internal/testenv"
)

// TestPageReminds leaves an order unpaid until the worker has sent the reminder, which the page must show.
func TestPageReminds(t *testing.T) {
	pageTest(t)
	page := shopTab(t, newSite(t, testenv.Redis(t), envTimeout+"=18s").serve(t))
	page.Click(buyBeans)
	page.Click(aOrder + " summary")
	page.WaitFor(aOrder+" .timeline", "reminder sent by the worker")
}
