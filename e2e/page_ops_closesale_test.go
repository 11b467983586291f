package e2e

import (
	"testing"

	"github.com/chromedp/chromedp"
)

// TestPageClosesTheSale closes the sale of a product on the operators' page. The customer's page must count down to the
// new deadline.
func TestPageClosesTheSale(t *testing.T) {
	pageTest(t)
	p := slowSite(t)
	page := shopTab(t, p)
	page.click(buyBeans)
	page.waitFor(aOrder+" .countdown", "9:5")
	page.click(aOrder + " summary")
	ops := opsTab(t, p)
	ops.waitFor("#close-sale-product", "Espresso beans")
	value(ops, chromedp.Evaluate[bool](`document.querySelectorAll("#close-sale-product option").forEach((option) => option.selected = option.text.startsWith("Espresso")), true`))
	ops.click("#close-sale button")
	ops.waitFor("#close-sale-result", "the deadline of 1 unpaid order moves forward to")
	page.front()
	page.waitFor(aOrder+" .countdown", "0:")
	page.waitFor(aOrder+" .timeline", "deadline brought forward by the shop")
	ops.front()
	ops.click("#close-sale button")
	ops.waitFor("#close-sale-result", "no unpaid order has more than a minute left")
}
