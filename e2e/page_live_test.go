package e2e

import (
	"fmt"
	"strings"
	"testing"

	"example.com/shop/internal/browsertest"
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
		eventually(t, n+" open streams", func() bool {
			return strings.Contains(string(p.operator().get("/metrics").body), "\n"+metricPrefix+"feed_streams "+n+"\n")
		})
	}
	show := func(hidden bool) {
		t.Helper()
		browsertest.Eval[bool](page, fmt.Sprintf(
			`Object.defineProperty(document, "hidden", {value: %t, configurable: true}), document.dispatchEvent(new Event("visibilitychange"))`, hidden))
	}
	streams("1")
	show(true)
	streams("0")
	browsertest.Eval[bool](page, `window.dispatchEvent(new Event("online"))`)
	p.signUp().place()
	page.WaitFor("#products", "10,000 left")
	streams("0")
	show(false)
	page.WaitFor("#products", "9,999 left")
	page.WaitFor(connection, "Live")
	streams("1")
}

// TestPageReconnects kills the service while the page is open, and starts another process at the same address.
func TestPageReconnects(t *testing.T) {
	pageTest(t)
	s := newSite(t, testenv.Redis(t), envHTTPAddr+"="+freeAddress(t), envTimeout+"=10m")
	p := s.serve(t)
	page := shopTab(t, p)
	page.Expect("ERR_") // connections are refused or reset
	still := page.MarkDocument()
	page.Click(buyBeans)
	page.WaitFor(aOrder, "left to pay")
	p.kill()
	page.WaitFor(connection, "Reconnecting…")
	page.WaitFor("#messages", "The service does not answer")
	s.serve(t)
	page.WaitFor(connection, "Live")
	page.Until("the message disappears", func() bool { return page.Text("#messages") == "" })
	page.Click(payOrder)
	page.WaitFor(aOrder, "Paid at")
	if text := page.Text("#messages"); text != "" || !still() {
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
