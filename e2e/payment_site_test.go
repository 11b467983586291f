package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"example.com/shop/internal/testenv"
)

// paidSite is a shop whose customers pay at a simulated payment provider. Each is a process.
type paidSite struct {
	*site
	shop     *process
	provider *process
}

func newPaidSite(t testing.TB, env ...string) *paidSite {
	t.Helper()
	needsOrders(t)
	provider, paid := startSimulator(t, freeAddress(t))
	s := newSite(t, testenv.Redis(t), append(paid, env...)...)
	return &paidSite{site: s, shop: s.serve(t), provider: provider}
}

// startSimulator starts a simulated payment provider for a shop at an address. It returns the environment of the shop.
func startSimulator(t testing.TB, shopAddr string) (provider *process, env []string) {
	t.Helper()
	secrets := []string{envPrefix + "STRIPE_KEY=sk_test_page", envPrefix + "STRIPE_WEBHOOK_SECRET=whsec_page"}
	provider = start(t, command(t, append(secrets, envDatabaseURL+"="+testenv.Postgres(t), envHTTPAddr+"=127.0.0.1:0",
		envPrefix+"WEBHOOK_URL=http://"+shopAddr+"/webhooks/stripe"), "provider"))
	return provider, append(secrets, envHTTPAddr+"="+shopAddr, envPrefix+"STRIPE_URL="+provider.url,
		envPrefix+"PUBLIC_URL=http://"+shopAddr,
		envPrefix+"DEPLOYMENT=e2e", envPrefix+"ALLOW_TEST_PAYMENTS=true", envPrefix+"CHECKOUT_TIME=0s")
}

// turn turns a knob of the provider.
func (s *paidSite) turn(t testing.TB, knob, value string) {
	t.Helper()
	s.control(t, http.MethodPut, "/sim/knobs", fmt.Sprintf(`{%q: %q}`, knob, value))
}

// control sends a request to the provider's control API, and returns the body of the response.
func (s *paidSite) control(t testing.TB, method, path, body string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.provider.url+path, strings.NewReader(body))
	testenv.Must(t, err)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	testenv.Must(t, err)
	defer resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		t.Fatalf("%s %s: status %d, want 2xx", method, path, resp.StatusCode)
	}
	text, err := io.ReadAll(resp.Body)
	testenv.Must(t, err)
	return text
}
