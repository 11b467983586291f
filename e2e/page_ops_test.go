package e2e

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"example.com/shop/e2e/shoptest"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/browsertest"
)

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

// TestPageOverdue lets the deadline of an order pass while no worker runs. The customer's page must not let it be
// paid. An operator signs in, and the page must list the order and say why it is pending, also when a worker has
// claimed its task and does not go on. Then a worker cancels the order, and the operator redrives a dead letter.
func TestPageOverdue(t *testing.T) {
	shoptest.PageTest(t)
	// The page must have the order before its deadline: afterwards the service tells it that the order cannot be paid.
	s := orders.NewSite(t, testenv.Redis(t), envTimeout+"=6s")
	bury(s, t, "task-without-order")
	p := s.Serve(t, "--roles=api") // a reconciler would remove a task without an order
	ops := signIn(t, p)
	ops.WaitFor("#dead", "task-without-order")
	if ops.Count("[data-fault]") != ops.Count("#faults[hidden] [data-fault]") {
		t.Error("the page shows buttons for faults outside the demo")
	}
	ops.CheckLook("ops-dead-letter")

	page := shoptest.ShopTab(t, p)
	page.Expect("409")
	page.Click(shoptest.BuyBeans)
	page.WaitFor(shoptest.AnOrder, "The deadline has passed")
	page.Click(shoptest.PayOrder)
	page.WaitFor(shoptest.AnOrder, "The order was not paid by its deadline")
	id := browsertest.Eval[string](page, `document.querySelector("[data-order]").dataset.order`)

	ops.Front()
	ops.WaitFor("#overdue", "no worker has claimed its task for")
	queue := queueOf(s, t)
	batch, err := queue.Claim(t.Context(), 0, 1, time.Minute)
	testenv.Must(t, err)
	worker := fmt.Sprintf(":%d", os.Getpid())
	ops.WaitFor("#overdue", worker+" has claimed its task")
	ops.Click("#overdue button")
	ops.WaitFor("#whereis-next", "It is overdue by")
	ops.WaitFor("#whereis-more", worker+"; the lease ends in")
	ops.CheckLook("ops-where-is-this-order")
	ops.Do(chromedp.SetValue(chromedp.CSS("#whereis-id"), "an unknown id"))
	ops.Expect("400")
	ops.Type("#whereis-id", kb.Enter)
	ops.WaitFor("#whereis-next", "printable ASCII")
	ops.Do(chromedp.SetValue(chromedp.CSS("#whereis-id"), " "+id+" "))
	_, err = queue.Retry(t.Context(), batch, delay.Requeue{ID: id})
	testenv.Must(t, err)
	s.Serve(t, "--roles=worker,relay")
	ops.Until("no order is overdue", func() bool { return ops.Count("#overdue li") == 0 })
	ops.Type("#whereis-id", kb.Enter)
	ops.WaitFor("#whereis-next", "It was cancelled by the worker")

	ops.Click("#dead button")
	ops.Until("nothing waits for a person", func() bool {
		return ops.Count("#dead-letters[hidden]") == 1 && ops.Text("#waiting .nothing") == "Nothing."
	})
	page.Front()
	page.WaitFor(shoptest.AnOrder, "Cancelled: not paid in time")
}

// signIn opens the operators' page without a token, and signs in with a wrong one and then with the right one.
func signIn(t *testing.T, p *faulttest.Process) *browsertest.Tab {
	t.Helper()
	page := shoptest.Open(t, p.URL+"/ops")
	page.Expect("401")
	page.WaitFor("#sign-in", "Operators' token")
	page.Type("#token", "not the token"+kb.Enter)
	page.WaitFor("#messages", faulttest.EnvOpsToken)
	page.Type("#token", faulttest.OpsToken+kb.Enter)
	return page
}
