package e2e

import (
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"example.com/shop/internal/browsertest"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/testenv"
)

// opsTab opens the operators' page by a link with the token, as the demo prints it.
func opsTab(t *testing.T, p *process) *browsertest.Tab {
	t.Helper()
	page := open(t, p.url+"/ops#token="+p.opsToken)
	page.WaitFor(connection, "Live")
	return page
}

// queue returns the queue of timeouts.
func (s *site) queue(t *testing.T) *delay.Queue {
	t.Helper()
	rdb, err := delay.Connect(s.redis)
	testenv.Must(t, err)
	t.Cleanup(func() { rdb.Close() })
	queue, err := delay.NewQueue(rdb, delay.Config{Kind: kind, Shards: 1})
	testenv.Must(t, err)
	return queue
}

// bury adds a dead letter.
func (s *site) bury(t *testing.T, id string) {
	t.Helper()
	queue := s.queue(t)
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
	s := newSite(t, testenv.Redis(t))
	s.bury(t, "task-without-item")
	p := s.serve(t, "--roles=api") // a reconciler would remove a task without an order
	page := open(t, p.url+"/ops")
	page.Expect("401")
	page.WaitFor("#sign-in", "Operators' token")
	page.Type("#token", "not the token"+kb.Enter)
	page.WaitFor("#messages", envOpsToken)
	page.Type("#token", opsToken+kb.Enter)
	page.WaitFor("#dead", "task-without-item")
	if page.Count("[data-fault]") != page.Count("#faults[hidden] [data-fault]") {
		t.Error("the page shows buttons for faults outside the demo")
	}
	page.CheckLook("ops-dead-letter")
	page.Click("#dead button")
	page.Until("nothing waits for a person", func() bool {
		return page.Count("#dead-letters[hidden]") == 1 && page.Text("#waiting .nothing") == "Nothing."
	})
}
