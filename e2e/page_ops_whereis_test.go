package e2e

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"example.com/shop/internal/testenv"
)

// TestPageFindsAnOrder lets an order become overdue without a worker. The operators' page must list it and say why it is pending. Then
// it is found by its id.
func TestPageFindsAnOrder(t *testing.T) {
	pageTest(t)
	s := newSite(t, testenv.Redis(t), envTimeout+"=1s")
	p := s.serve(t, "--roles=api")
	o := p.create()
	page := opsTab(t, p)
	page.waitFor("#overdue", "its task is due, and no worker has claimed it")
	page.click("#overdue button")
	page.waitFor("#whereis-next", "It is overdue by")
	page.waitFor("#whereis-more", "order_trail: 1")
	page.checkLook(t, "ops-where-is-this-order")
	page.do(chromedp.SetValue(chromedp.CSS("#whereis-id"), "an unknown id"))
	page.expect("400")
	page.do(chromedp.SendKeys(chromedp.CSS("#whereis-id"), kb.Enter))
	page.waitFor("#whereis-next", "printable ASCII")
	page.do(chromedp.SetValue(chromedp.CSS("#whereis-id"), " "+o.id+" "))
	s.serve(t, "--roles=worker")
	page.until("no order is overdue", func() bool { return page.count("#overdue li") == 0 })
	page.do(chromedp.SendKeys(chromedp.CSS("#whereis-id"), kb.Enter))
	page.waitFor("#whereis-next", "It was cancelled by a worker")
}
