package shoptest

import (
	"testing"

	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/browsertest"
)

// What the tests of the pages press and look at.
const (
	BuyBeans    = `button[aria-label^="Buy Espresso"]`
	AnOrder     = `#orders .order`
	PayOrder    = AnOrder + ` [data-action="pay"]`
	CancelOrder = AnOrder + ` [data-action="cancel"]`
	Connection  = `#connection`
)

// Connected is what a page shows in [Connection] when it learns of changes.
const Connected = "Live"

// PageTest begins a test of a page.
func PageTest(t *testing.T) {
	t.Helper()
	testenv.Slow(t, "pages in a browser")
	NeedPages(t)
}

// NeedPages skips a test of a page if the machine has no browser, or if E2E_BASE_URL is set. The test runs in
// parallel with others.
func NeedPages(t *testing.T) {
	t.Helper()
	faulttest.NeedsProcesses(t)
	browsertest.Need(t)
	t.Parallel()
}

// NewTab opens an empty tab for a page of the shop.
func NewTab(t *testing.T) *browsertest.Tab {
	t.Helper()
	page := browsertest.New(t)
	page.Expect("404", "/ops/api/faults")     // a page asks whether the service has it
	page.Expect("401", "/api/orders?limit=1") // a browser without a cookie asks for its orders before it signs up
	return page
}

// Open opens a page of the shop in a new tab, so as a new customer.
func Open(t *testing.T, url string) *browsertest.Tab {
	t.Helper()
	page := NewTab(t)
	page.Navigate(url)
	return page
}

// ShopTab opens the shop's page, and waits until it learns of changes.
func ShopTab(t *testing.T, p *faulttest.Process) *browsertest.Tab {
	t.Helper()
	page := Open(t, p.URL)
	page.WaitFor(Connection, Connected)
	page.WaitFor("#products", "Espresso beans")
	page.WaitFor("#orders", "No orders yet")
	return page
}

// OpsTab opens the operators' page by a link with the token, as the demo prints it.
func OpsTab(t *testing.T, p *faulttest.Process) *browsertest.Tab {
	t.Helper()
	page := Open(t, p.URL+"/ops#token="+p.OpsToken)
	page.WaitFor(Connection, "Live")
	return page
}
