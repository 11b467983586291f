package e2e

import (
	"testing"

	"example.com/shop/internal/testenv"
)

// TestPageReminds leaves an order unpaid until only seconds are left. The page must say so, also to screen readers,
// and show that the worker has sent the reminder.
func TestPageReminds(t *testing.T) {
	pageTest(t)
	page := shopTab(t, newSite(t, testenv.Redis(t), envTimeout+"=18s").serve(t))
	page.Click(buyBeans)
	page.Click(aOrder + " summary")
	page.WaitFor(aOrder+" .state", "Only seconds left to pay")
	page.WaitFor("#announcer", "seconds left to pay")
	page.WaitFor(aOrder+" .timeline", "reminder sent by the worker")
}
