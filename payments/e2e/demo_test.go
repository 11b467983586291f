package e2e

import (
	"net/http"
	"strings"
	"testing"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv/browsertest"
)

// TestDemoWithPayments starts the demo, as a newcomer does. A customer pays at the provider's checkout, and an order
// that nobody pays is cancelled.
func TestDemoWithPayments(t *testing.T) {
	t.Parallel()
	p := shoptest.Demo(t, shop, nil, "--order-timeout", "3s")
	faulttest.Contains(t, p.Text(), "a simulator of Stripe within this process", "An order that is not paid within 3s is cancelled.")
	c := p.SignUp()
	unpaid := c.Create().ID
	var paid string
	var buyer *faulttest.Client
	faulttest.Eventually(t, "a customer pays before the deadline", func() bool { // the deadline may be seconds away
		buyer = p.SignUp()
		paid = buyer.Create().ID
		payment, ok := tryCheckout(buyer, paid)
		provider, _, _ := strings.Cut(payment.CheckoutURL, "/checkout/")
		return ok && press(t, provider, payment.CheckoutURL) == http.StatusSeeOther
	})
	faulttest.Eventually(t, "the payment has paid the order", func() bool { return buyer.Look(paid).Status == faulttest.Confirmed })
	c.WaitForTimeout(unpaid)
}

// TestPageDemoWithPayments turns the knobs of the demo's payment provider on the operators' page, and checks the look
// of both pages with an open checkout.
func TestPageDemoWithPayments(t *testing.T) {
	shoptest.PageTest(t)
	p := shoptest.Demo(t, shop, nil, "--order-timeout", "5m")
	ops := shoptest.OpsTab(t, p)
	ops.Click("#faults summary")
	turnProvider(t, p, ops)
	page := shoptest.ShopTab(t, p)
	page.Click(shoptest.BuyBeans)
	page.Click(payAtOnce)
	page.WaitFor(shoptest.AnOrder, "Paid at")
	page.Click(`button[aria-label^="Buy Moka"]`)
	page.Until("two orders", func() bool { return page.Count(shoptest.AnOrder) == 2 })
	page.Click(shoptest.PayOrder) // in the checkout, which stays open
	page.WaitFor(shoptest.AnOrder+` a.button`, "Open the checkout")
	page.Front() // not the tab of the checkout
	page.CheckLook("shop-payments")
	ops.Front()
	ops.CheckLook("ops-payments")
}

// turnProvider turns the knobs of the demo's payment provider on the operators' page.
func turnProvider(t *testing.T, p *faulttest.Process, page *browsertest.Tab) {
	t.Helper()
	p.Operator().Get("/ops/api/provider-ledger") // which checks the answer against the contract
	page.WaitFor("#provider-state", "Provider: up")
	page.WaitFor("#ledger", "The provider's own ledger: captured nothing, returned nothing. The two ledgers agree.")
	for fault, want := range map[string]string{"provider-down": "stopped", "provider-hung": "hangs", "provider-loses-answers": "loses its answers"} {
		page.Click(`[data-fault="` + fault + `"]`)
		page.WaitFor("#provider-state", want)
	}
	page.Click(`[data-fault="provider-up"]`)
	page.WaitFor("#provider-state", "Provider: up")
	for _, mode := range []string{"lost", "doubled", "late", "reordered", "normal"} {
		button := `[data-fault="webhooks-` + mode + `"]`
		page.Click(button)
		page.WaitFor("#webhooks-state", mode)
		if page.Count(button+`[aria-pressed="true"]`) != 1 {
			t.Errorf("the button of the webhooks %s is not pressed", mode)
		}
	}
}
