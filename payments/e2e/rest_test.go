package e2e

import (
	"net/http"
	"net/url"
	"os"
	"testing"
	"time"

	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
	"example.com/shop/payments/paymenttest"
)

// TestPayAtCheckout pays an order at the provider's checkout, and cancels another order whose checkout is open. On a
// deployed site it needs the address of the simulated provider, E2E_PROVIDER_URL.
func TestPayAtCheckout(t *testing.T) {
	testenv.Slow(t, "starts a shop and its provider")
	site, provider := anyPaidSite(t)
	var c *faulttest.Client

	var paid string
	faulttest.Eventually(t, "a customer pays before the deadline", func() bool { // the deadline may be seconds away
		c = site.SignUp() // a customer can have only a few unpaid orders
		paid = c.Create().ID
		p, ok := tryCheckout(c, paid)
		return ok && press(t, provider, p.CheckoutURL) == http.StatusSeeOther
	})
	faulttest.Eventually(t, "the payment has paid the order", func() bool { return c.Look(paid).Status == faulttest.Confirmed })
	if all := paymenttest.Payments(c, paid); len(all) != 1 || all[0].State != "succeeded" || !all[0].Applied || all[0].CheckoutURL != "" {
		t.Errorf("the payments of the paid order are %+v, want one that succeeded and is applied", all)
	}

	var withdrawn string
	faulttest.Eventually(t, "a customer cancels before the deadline", func() bool {
		c = site.SignUp()
		withdrawn = c.Create().ID
		first, ok := tryCheckout(c, withdrawn)
		second, again := tryCheckout(c, withdrawn)
		if ok && again && (second.ID != first.ID || second.CheckoutURL != first.CheckoutURL) {
			t.Errorf("a second tab gets the payment %+v, want that of the first tab, %+v", second, first)
		}
		return ok && c.Send(faulttest.Request{Method: http.MethodPost, Path: paymenttest.Path(withdrawn) + "/close"}).Status == http.StatusOK &&
			c.Send(shop.Cancel(withdrawn, "")).Status == http.StatusOK
	})
	faulttest.Eventually(t, "the order is cancelled", func() bool { return c.Look(withdrawn).Status == faulttest.Cancelled })
	if all := paymenttest.Payments(c, withdrawn); len(all) != 1 || all[0].State != "closed" {
		t.Errorf("the payments of the cancelled order are %+v, want one that is closed", all)
	}
}

// anyPaidSite returns the site for a test that needs only the REST API and the provider's checkout page, and the
// address of the provider. See [faulttest.Service.AnySite].
func anyPaidSite(t *testing.T) (site *faulttest.Process, provider string) {
	t.Helper()
	if !faulttest.Deployed() {
		t.Parallel()
		s := paymenttest.NewSite(t, shop)
		return s.Shop, s.Provider.URL
	}
	provider = os.Getenv("E2E_PROVIDER_URL")
	if provider == "" {
		t.Skip("E2E_BASE_URL is set without E2E_PROVIDER_URL, the address of the site's payment provider")
	}
	return shop.AnySite(t), provider
}

// tryCheckout opens a payment of an order, and reports whether the order could still be paid.
func tryCheckout(c *faulttest.Client, order string) (p paymenttest.Payment, ok bool) {
	c.T.Helper()
	a := c.Send(faulttest.Request{Method: http.MethodPost, Path: paymenttest.Path(order)})
	if a.Status != http.StatusCreated && a.Status != http.StatusOK {
		c.T.Logf("no checkout: %s", a.Body)
		return paymenttest.Payment{}, false
	}
	return faulttest.Decode[paymenttest.Payment](c.T, a), true
}

// press presses "Pay" on a checkout page, and returns the status of the answer, or 0 if none comes in time. The
// provider is at another address than the checkout's URL says if a container maps its port.
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
