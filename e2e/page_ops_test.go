package e2e

import (
	"fmt"
	"strings"
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
	rdb, err := delay.Connect(s.Redis, nil)
	testenv.Must(t, err)
	t.Cleanup(func() { rdb.Close() })
	queue, err := delay.NewQueue(rdb, orders.Kind, 1)
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
	ops.WaitFor("#overdue", "a worker has claimed its task")
	ops.Click("#overdue button")
	ops.WaitFor("#whereis-next", "It is overdue by")
	ops.WaitFor("#whereis-more", "claimed; the lease ends in")
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

// TestPageSchedule looks at the picture of time while an order waits, after Redis has lost its task, after a sweep has
// added it, and after the deadline, while no worker runs.
func TestPageSchedule(t *testing.T) {
	shoptest.PageTest(t)
	s := orders.NewSite(t, testenv.Redis(t), envTimeout+"=200s", faulttest.EnvPrefix+"RECONCILE_LOOKAHEAD=4m")
	p := s.Serve(t, "--roles=api,relay")
	p.SignUp().Create()
	ops := shoptest.OpsTab(t, p)
	ops.WaitFor("#schedule-text", "Due in the next")
	ops.WaitFor("#schedule-text", "1 order, the first of them in some")
	ops.WaitFor("#schedule-text", "No task is seen to be missing in Redis.")
	rdb, err := delay.Connect(s.Redis, nil)
	testenv.Must(t, err)
	defer rdb.Close()
	testenv.Must(t, rdb.FlushDB(t.Context()).Err())
	ops.WaitFor("#schedule-text", "Redis misses 1 task")
	if ops.Count("#schedule .missing") != 1 || ops.Count("#schedule .orders") != 1 ||
		ops.Count("#schedule .tasks") != 0 {
		t.Error("the picture does not show one order and one missing task")
	}
	ops.CheckLook("ops-missing")
	reconciler := s.Serve(t, "--roles=reconciler")
	ops.WaitFor("#schedule-text", "No task is seen to be missing in Redis.")
	reconciler.Interrupt()
	testenv.Exec(t, faulttest.OpenDatabase(t, s.Database),
		`UPDATE orders SET created_at = now() - interval '1 h', expires_at = now()`)
	ops.WaitFor("#schedule-text", "Orders are overdue")
	colour := `getComputedStyle(document.querySelector('[data-stat="%s"]')).color`
	if browsertest.Eval[string](ops, fmt.Sprintf(colour, "overdue")) == browsertest.Eval[string](ops,
		fmt.Sprintf(colour, "pending")) {
		t.Error("the figure of an order that is overdue has the colour of the others")
	}
	ops.CheckLook("ops-overdue")
	s.Serve(t, "--roles=reconciler")
	ops.WaitFor("#schedule-text", "Cancelled in the last hour: 1,")
}

// TestPageDemo looks at both pages of the demo, with an order in each state. Then it stops Redis: the customers' page
// must poll until Redis is back, and an order times out meanwhile. With -screenshots it makes the pictures in docs.
func TestPageDemo(t *testing.T) {
	shoptest.PageTest(t)
	p := demo(t, nil, timeoutFlag, "30s")
	ops := shoptest.OpsTab(t, p)
	ops.Click("#faults summary")
	if shown := browsertest.Run(ops, chromedp.Location()); strings.Contains(shown, p.OpsToken) {
		t.Errorf("the page leaves the token in its address: %s", shown)
	}
	shop := shoptest.ShopTab(t, p)
	shop.Click(shoptest.BuyBeans)
	shop.Click(shoptest.PayOrder)
	shop.WaitFor(shoptest.AnOrder, "Paid at")
	shop.Click(`button[aria-label^="Buy Porcelain"]`)
	shop.Until("two orders", func() bool { return shop.Count(shoptest.AnOrder) == 2 })
	shop.Click(shoptest.CancelOrder)
	shop.WaitFor(shoptest.AnOrder, "Cancelled by you")
	shop.Click(`button[aria-label^="Buy Moka"]`)
	shop.Until("three orders", func() bool { return shop.Count(shoptest.AnOrder) == 3 })
	shop.Click(shoptest.AnOrder + `:nth-child(3) summary`)
	shop.WaitFor(shoptest.AnOrder+":nth-child(3) .timeline", "paid by you")
	shop.CheckLook("shop")
	ops.Front()
	ops.Click(`[data-fault="place-orders"]`)
	ops.WaitFor("#log", "1,000 orders are placed")
	ops.CheckLook("ops")

	ops.Click(`[data-fault="redis-stop"]`)
	ops.WaitFor("#schedule-text", "Redis does not answer")
	shop.Front()
	shop.WaitFor(shoptest.Connection, "No live updates: refreshed every 3 s")
	shop.Click(shoptest.BuyBeans)
	shop.Until("another order", func() bool { return shop.Count(shoptest.AnOrder) == 4 })
	shop.WaitFor(shoptest.AnOrder, "Cancelled: not paid in time") // by the reconciler, and without a notification
	ops.Front()
	ops.Click(`[data-fault="redis-start"]`)
	shop.Front()
	shop.WaitFor(shoptest.Connection, "Live")
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
