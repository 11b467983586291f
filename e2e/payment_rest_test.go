package e2e

import (
	"net/http"
	"net/url"
	"os"
	"testing"
	"time"

	"example.com/shop/internal/testenv"
)

// TestPayAtCheckout pays an order at the provider's checkout, and cancels another order whose checkout is open. On a
// deployed site it needs the address of the simulated provider, E2E_PROVIDER_URL.
func TestPayAtCheckout(t *testing.T) {
	site, provider := anyPaidSite(t)
	var c *client

	var paid string
	eventually(t, "a customer pays before the deadline", func() bool { // the deadline may be seconds away
		c = site.signUp() // a customer can have only a few unpaid orders
		paid = c.create().id
		p, ok := c.openCheckout(paid)
		return ok && press(t, provider, p.CheckoutURL) == http.StatusSeeOther
	})
	eventually(t, "the payment has paid the order", func() bool { return c.look(paid).status == confirmed })
	if all := c.payments(paid); len(all) != 1 || all[0].State != "succeeded" || !all[0].Applied || all[0].CheckoutURL != "" {
		t.Errorf("the payments of the paid order are %+v, want one that succeeded and is applied", all)
	}

	var withdrawn string
	eventually(t, "a customer cancels before the deadline", func() bool {
		c = site.signUp()
		withdrawn = c.create().id
		first, ok := c.openCheckout(withdrawn)
		second, again := c.openCheckout(withdrawn)
		if ok && again && (second.ID != first.ID || second.CheckoutURL != first.CheckoutURL) {
			t.Errorf("a second tab gets the payment %+v, want that of the first tab, %+v", second, first)
		}
		return ok && c.send(domain.cancel(withdrawn)).status == http.StatusAccepted
	})
	eventually(t, "the order is cancelled", func() bool { return c.look(withdrawn).status == cancelled })
	if all := c.payments(withdrawn); len(all) != 1 || all[0].State != "closed" {
		t.Errorf("the payments of the cancelled order are %+v, want one that is closed", all)
	}
}

// anyPaidSite returns the site for a test that needs only the REST API and the provider's checkout page, and the
// address of the provider. See [anySite].
func anyPaidSite(t *testing.T) (site *process, provider string) {
	t.Helper()
	if !deployed() {
		t.Parallel()
		s := newPaidSite(t)
		return s.shop, s.provider.url
	}
	provider = os.Getenv("E2E_PROVIDER_URL")
	if provider == "" {
		t.Skip("E2E_BASE_URL is set without E2E_PROVIDER_URL, the address of the site's payment provider")
	}
	return anyShop(t), provider
}

// openCheckout opens a payment of an order, and reports whether the order could still be paid.
func (c *client) openCheckout(order string) (p payment, ok bool) {
	c.t.Helper()
	a := c.send(request{method: http.MethodPost, path: paymentsPath(order)})
	if a.status != http.StatusCreated && a.status != http.StatusOK {
		c.t.Logf("no checkout: %s", a.body)
		return payment{}, false
	}
	return decode[payment](c.t, a), true
}

// press presses "Pay" on a checkout page, and returns the status of the answer, or 0 if none comes in time. The provider is at
// another address than the checkout's URL says if a container maps its port.
func press(t *testing.T, provider, checkout string) int {
	t.Helper()
	page, err := url.Parse(checkout)
	testenv.Must(t, err)
	browser := &http.Client{
		Timeout:       10 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	defer browser.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, provider+page.Path+"/pay", http.NoBody)
	testenv.Must(t, err)
	resp, err := browser.Do(req)
	if err != nil {
		t.Logf("no answer to a payment: %v", err)
		return 0
	}
	defer resp.Body.Close()
	return resp.StatusCode
}
