package e2e

import (
	"testing"

	"example.com/shop/internal/browsertest"
)

// TestPageClosesTheSale closes the sale of a product on the operators' page. The customer's page must count down to the
// new deadline.
func TestPageClosesTheSale(t *testing.T) {
	pageTest(t)
	p := slowSite(t)
	page := shopTab(t, p)
	page.Click(buyBeans)
	page.WaitFor(aOrder+" .countdown", "9:5")
	page.Click(aOrder + " summary")
	ops := opsTab(t, p)
	ops.WaitFor("#close-sale-product", "Espresso beans")
	browsertest.Eval[bool](ops, `document.querySelectorAll("#close-sale-product option").forEach((option) => option.selected = option.text.startsWith("Espresso")), true`)
	ops.Click("#close-sale button")
	ops.WaitFor("#close-sale-result", "the deadline of 1 unpaid order moves forward to")
	page.Front()
	page.WaitFor(aOrder+" .countdown", "0:")
	page.WaitFor(aOrder+" .timeline", "deadline brought forward by the shop")
	ops.Front()
	ops.Click("#close-sale button")
	ops.WaitFor("#close-sale-result", "no unpaid order has more than a minute left")
}
