package e2e

import (
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
)

// opsTab opens the operators' page by a link with the token, as the demo prints it.
func opsTab(t *testing.T, p *faulttest.Process) *tab {
	t.Helper()
	page := open(t, p.URL+"/ops#token="+p.OpsToken)
	page.waitFor(connection, "Live")
	return page
}

// queueOf returns the queue of timeouts.
func queueOf(s *faulttest.Site, t *testing.T) *delay.Queue {
	t.Helper()
	rdb, err := delay.Connect(s.Redis)
	testenv.Must(t, err)
	t.Cleanup(func() { rdb.Close() })
	queue, err := delay.NewQueue(rdb, delay.Config{Kind: orders.Kind, Shards: 1})
	testenv.Must(t, err)
	return queue
}

// bury adds a dead letter.
func bury(s *faulttest.Site, t *testing.T, id string) {
	t.Helper()
	queue := queueOf(s, t)
	testenv.Must(t, queue.Schedule(t.Context(), delay.In(id, 0)))
	batch, err := queue.Claim(t.Context(), 0, 1, time.Minute)
	testenv.Must(t, err)
	n, err := queue.Bury(t.Context(), batch, delay.Burial{ID: id, Err: "buried by a test"})
	testenv.Must(t, err)
	if n != 1 {
		t.Fatalf("%d tasks buried, want 1", n)
	}
}

// TestPageRedrives signs in on the operators' page and redrives a dead letter.
func TestPageRedrives(t *testing.T) {
	pageTest(t)
	s := orders.NewSite(t, testenv.Redis(t))
	bury(s, t, "task-without-item")
	p := s.Serve(t, "--roles=api") // a reconciler would remove a task without an order
	page := open(t, p.URL+"/ops")
	page.expect("401")
	page.waitFor("#sign-in", "Operators' token")
	page.do(chromedp.SendKeys(chromedp.CSS("#token"), "not the token"+kb.Enter))
	page.waitFor("#messages", faulttest.EnvOpsToken)
	page.do(chromedp.SendKeys(chromedp.CSS("#token"), faulttest.OpsToken+kb.Enter))
	page.waitFor("#dead", "task-without-item")
	if page.count("[data-fault]") != page.count("#faults[hidden] [data-fault]") {
		t.Error("the page shows buttons for faults outside the demo")
	}
	page.checkLook(t, "ops-dead-letter")
	page.click("#dead button")
	page.until("nothing waits for a person", func() bool {
		return page.count("#dead-letters[hidden]") == 1 && page.text("#waiting .nothing") == "Nothing."
	})
}
