package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
)

func init() {
	connected = "Live"
	withoutPolling = onlyNotifications
}

// TestPageSleeps hides the tab. The page must close its stream, and be up to date when the tab is shown again.
func TestPageSleeps(t *testing.T) {
	pageTest(t)
	p := slowSite(t)
	page := shopTab(t, p)
	streams := func(n string) {
		t.Helper()
		faulttest.Eventually(t, n+" open streams", func() bool {
			return strings.Contains(string(p.Operator().Get("/metrics").Body), "\nshop_feed_streams "+n+"\n")
		})
	}
	show := func(hidden bool) {
		t.Helper()
		value(page, chromedp.Evaluate[bool](fmt.Sprintf(
			`Object.defineProperty(document, "hidden", {value: %t, configurable: true}), document.dispatchEvent(new Event("visibilitychange"))`, hidden)))
	}
	streams("1")
	show(true)
	streams("0")
	value(page, chromedp.Evaluate[bool](`window.dispatchEvent(new Event("online"))`))
	place(p.SignUp())
	page.waitFor("#products", "10,000 left")
	streams("0")
	show(false)
	page.waitFor("#products", "9,999 left")
	page.waitFor(connection, "Live")
	streams("1")
}

// TestPageReconnects kills the service while the page is open, and starts another process at the same address.
func TestPageReconnects(t *testing.T) {
	pageTest(t)
	s := orders.NewSite(t, testenv.Redis(t), faulttest.EnvHTTPAddr+"="+faulttest.FreeAddress(t), envTimeout+"=10m")
	p := s.Serve(t)
	page := shopTab(t, p)
	page.expect("ERR_") // connections are refused or reset
	still := page.markDocument()
	page.click(buyBeans)
	page.waitFor(aOrder, "left to pay")
	p.Kill()
	page.waitFor(connection, "Reconnecting…")
	page.waitFor("#messages", "The service does not answer")
	s.Serve(t)
	page.waitFor(connection, "Live")
	page.until("the message disappears", func() bool { return page.text("#messages") == "" })
	page.click(payOrder)
	page.waitFor(aOrder, "Paid at")
	if text := page.text("#messages"); text != "" || !still() {
		t.Errorf("after the outage: message %q, page not reloaded: %v; want no message and no reload", text, still())
	}
}

// onlyNotifications is a script after which the page requests nothing from time to time, but only when a notification
// tells it to, or when the customer does something.
const onlyNotifications = `{
	window.EventSource = class extends EventSource {
		addEventListener(name, listener) {
			name === 'heartbeat' || super.addEventListener(name, listener);
		}
	};
	const real = window.setTimeout;
	window.setTimeout = (f, milliseconds) => milliseconds > 20_000 ? 0 : real(f, milliseconds); // the connection is silent
}`
