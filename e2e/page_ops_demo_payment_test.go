package e2e

import (
	"testing"

	"example.com/shop/internal/browsertest"
)

func init() {
	payNow = payAtOnce
	payAnother = func(shop *browsertest.Tab) {
		shop.Click(payOrder) // in the checkout, which stays open
		shop.WaitFor(openCheckout, "Open the checkout")
		shop.Front() // not the tab of the checkout
	}
}

// TestPageProviderFaults turns the knobs of the demo's payment provider on the operators' page.
func TestPageProviderFaults(t *testing.T) {
	pageTest(t)
	page := faultsTab(t, demo(t, nil))
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
