// Package paymenttest starts shops whose customers pay at a simulated payment provider.
package paymenttest

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// Service returns the shop with payments as a service under test. The directory is that of the repository, seen from
// the package of the tests.
func Service(repository string) *faulttest.Service {
	s := shoptest.Service(repository)
	s.Module = filepath.Join(repository, "payments")
	s.Contract = sync.OnceValues(func() (*parttest.Contract, error) { return parttest.LoadContract(repository, s.Module) })
	s.Rejections["/problems/checkout-refused"] = faulttest.RejectedByParty
	s.Rejections["/problems/payment-in-progress"] = faulttest.RejectedByParty
	return s
}

// Site is a shop whose customers pay at a simulated payment provider. Each is a process.
type Site struct {
	*faulttest.Site
	Shop     *faulttest.Process
	Provider *faulttest.Process
}

// NewSite starts a shop and its provider.
func NewSite(t testing.TB, shop *faulttest.Service, env ...string) *Site {
	t.Helper()
	provider, paid := StartSimulator(t, shop, faulttest.FreeAddress(t))
	s := shop.NewSite(t, testenv.Redis(t), append(paid, env...)...)
	return &Site{Site: s, Shop: s.Serve(t), Provider: provider}
}

// StartSimulator starts a simulated payment provider for a shop at an address. It returns the environment of the shop.
func StartSimulator(t testing.TB, shop *faulttest.Service, shopAddr string) (provider *faulttest.Process, env []string) {
	t.Helper()
	secrets := []string{faulttest.EnvPrefix + "STRIPE_KEY=sk_test_page", faulttest.EnvPrefix + "STRIPE_WEBHOOK_SECRET=whsec_page"}
	provider = shop.Start(t, shop.Command(t, append(secrets, faulttest.EnvDatabaseURL+"="+testenv.Postgres(t), faulttest.EnvHTTPAddr+"=127.0.0.1:0",
		faulttest.EnvPrefix+"WEBHOOK_URL=http://"+shopAddr+"/webhooks/stripe"), "provider"))
	return provider, append(secrets, faulttest.EnvHTTPAddr+"="+shopAddr, faulttest.EnvPrefix+"STRIPE_URL="+provider.URL,
		faulttest.EnvPrefix+"PUBLIC_URL=http://"+shopAddr,
		faulttest.EnvPrefix+"DEPLOYMENT=e2e", faulttest.EnvPrefix+"ALLOW_TEST_PAYMENTS=true", faulttest.EnvPrefix+"CHECKOUT_TIME=0s")
}

// Turn turns a knob of the provider.
func (s *Site) Turn(t testing.TB, knob, value string) {
	t.Helper()
	s.Control(t, http.MethodPut, "/sim/knobs", fmt.Sprintf(`{%q: %q}`, knob, value))
}

// Control sends a request to the provider's control API, and returns the body of the response.
func (s *Site) Control(t testing.TB, method, path, body string) []byte {
	t.Helper()
	return Control(t, s.Provider.URL, method, path, body)
}

// Control sends a request to the control API of the provider at a URL, and returns the body of the response.
func Control(t testing.TB, provider, method, path, body string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, provider+path, strings.NewReader(body))
	testenv.Must(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	testenv.Must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	testenv.Must(t, err)
	if resp.StatusCode/100 != 2 {
		t.Fatalf("%s %s: status %d, want 2xx: %s", method, path, resp.StatusCode, text)
	}
	return text
}

// Payment is a payment as the REST API shows it.
type Payment struct {
	ID          string
	OrderID     string `json:"order_id"`
	State       string
	Applied     bool
	AmountCents int64  `json:"amount_cents"`
	Currency    string // in upper case
	CheckoutURL string `json:"checkout_url"`
	Refund      *struct {
		State, Reason string
		AmountCents   int64 `json:"amount_cents"`
	}
}

// Path returns the path of the payments of an order.
func Path(order string) string { return "/api/orders/" + order + "/payments" }

// Payments returns the payments of an order.
func Payments(c *faulttest.Client, order string) []Payment {
	c.T.Helper()
	return faulttest.Decode[struct{ Items []Payment }](c.T, c.Get(Path(order))).Items
}

// Browser is a customer's browser at the provider's pages. It follows no redirects: it has left the page when the
// redirect comes.
var Browser = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
