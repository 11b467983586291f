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
	s := newSite(t, testenv.Redis(t), envTimeout+"=1s")
	p := s.serve(t, "--roles=api")
	o := p.create()
	page := opsTab(t, p)
	page.WaitFor("#overdue", "its task is due, and no worker has claimed it")
	queue := s.queue(t)
	batch, err := queue.Claim(t.Context(), 0, 1, time.Minute)
	testenv.Must(t, err)
	worker := fmt.Sprintf(":%d", os.Getpid())
	page.WaitFor("#overdue", worker+" has claimed its task")
	page.Click("#overdue button")
	page.WaitFor("#whereis-next", "It is overdue by")
	page.WaitFor("#whereis-more", worker+"; the lease ends in")
	page.WaitFor("#whereis-more", "order_trail: 1")
	page.CheckLook("ops-where-is-this-order")
	page.Do(chromedp.SetValue(chromedp.CSS("#whereis-id"), "an unknown id"))
	page.Expect("400")
	page.Type("#whereis-id", kb.Enter)
	page.WaitFor("#whereis-next", "printable ASCII")
	page.Do(chromedp.SetValue(chromedp.CSS("#whereis-id"), " "+o.id+" "))
	_, err = queue.Retry(t.Context(), batch, delay.Requeue{ID: o.id})
	testenv.Must(t, err)
	s.serve(t, "--roles=worker")
	page.Until("no order is overdue", func() bool { return page.Count("#overdue li") == 0 })
	page.Type("#whereis-id", kb.Enter)
	page.WaitFor("#whereis-next", "It was cancelled by a worker")
}
