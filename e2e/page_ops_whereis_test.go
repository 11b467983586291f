package e2e

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/testenv"
)

// TestPageFindsAnOrder lets an order become overdue, first without a worker, and then with one that does not go on. The operators' page
// must list it and say why it is pending. Then it is found by its id.
func TestPageFindsAnOrder(t *testing.T) {
	pageTest(t)
	s := orders.NewSite(t, testenv.Redis(t), envTimeout+"=1s")
	p := s.Serve(t, "--roles=api")
	o := p.Create()
	page := opsTab(t, p)
	page.waitFor("#overdue", "its task is due, and no worker has claimed it")
	queue := queueOf(s, t)
	batch, err := queue.Claim(t.Context(), 0, 1, time.Minute)
	testenv.Must(t, err)
	worker := fmt.Sprintf(":%d", os.Getpid())
	page.waitFor("#overdue", worker+" has claimed its task")
	page.click("#overdue button")
	page.waitFor("#whereis-next", "It is overdue by")
	page.waitFor("#whereis-more", worker+"; the lease ends in")
	page.waitFor("#whereis-more", "order_trail: 1")
	page.checkLook(t, "ops-where-is-this-order")
	page.do(chromedp.SetValue(chromedp.CSS("#whereis-id"), "an unknown id"))
	page.expect("400")
	page.do(chromedp.SendKeys(chromedp.CSS("#whereis-id"), kb.Enter))
	page.waitFor("#whereis-next", "printable ASCII")
	page.do(chromedp.SetValue(chromedp.CSS("#whereis-id"), " "+o.ID+" "))
	_, err = queue.Retry(t.Context(), batch, delay.Requeue{ID: o.ID})
	testenv.Must(t, err)
	s.Serve(t, "--roles=worker")
	page.until("no order is overdue", func() bool { return page.count("#overdue li") == 0 })
	page.do(chromedp.SendKeys(chromedp.CSS("#whereis-id"), kb.Enter))
	page.waitFor("#whereis-next", "It was cancelled by a worker")
}
