package e2e

import "testing"

func init() {
	payNow = payAtOnce
	payAnother = func(shop *tab) {
		shop.click(payOrder) // in the checkout, which stays open
		shop.waitFor(openCheckout, "Open the checkout")
		shop.front() // not the tab of the checkout
	}
}

// TestPageProviderFaults turns the knobs of the demo's payment provider on the operators' page.
func TestPageProviderFaults(t *testing.T) {
	pageTest(t)
	page := faultsTab(t, demo(t, nil))
	page.waitFor("#provider-state", "Provider: up")
	page.waitFor("#ledger", "The provider's own ledger: captured nothing, returned nothing. The two ledgers agree.")
	for fault, want := range map[string]string{"provider-down": "stopped", "provider-hung": "hangs", "provider-loses-answers": "loses its answers"} {
		page.click(`[data-fault="` + fault + `"]`)
		page.waitFor("#provider-state", want)
	}
	page.click(`[data-fault="provider-up"]`)
	page.waitFor("#provider-state", "Provider: up")
	for _, mode := range []string{"lost", "doubled", "late", "reordered", "normal"} {
		button := `[data-fault="webhooks-` + mode + `"]`
		page.click(button)
		page.waitFor("#webhooks-state", mode)
		if page.count(button+`[aria-pressed="true"]`) != 1 {
			t.Errorf("the button of the webhooks %s is not pressed", mode)
		}
	}
}
