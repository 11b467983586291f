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
	checkMissing(t, ops)
}

// checkMissing calls the function of the page that compares orders with tasks, for buckets of which the first has
// begun.
func checkMissing(t *testing.T, ops *browsertest.Tab) {
	t.Helper()
	browsertest.Eval[bool](ops,
		`import('/assets/schedule.js').then((module) => { window.missingTasks = module.missingTasks; }), true`)
	ops.Until("the module is loaded",
		func() bool { return browsertest.Eval[bool](ops, `window.missingTasks !== undefined`) })
	for name, test := range map[string]struct{ rows, tasks, want string }{
		"none":                        {"0,3,2,0", "0,3,2,0", "0,0,0,0"},
		"all":                         {"0,3,2,0", "0,0,0,0", "0,3,2,0"},
		"some":                        {"0,3,2,0", "0,3,1,0", "0,0,1,0"},
		"in a bucket that has begun":  {"4,3,2,0", "0,3,2,0", "0,0,0,0"},
		"in the last bucket":          {"0,3,2,1", "0,3,2,0", "0,0,0,0"},
		"tasks that are due earlier":  {"0,0,2,0", "0,2,0,0", "0,0,0,0"},
		"overdue tasks":               {"0,2,2,0", "2,2,0,0", "0,0,0,0"},
		"a task beyond the edge":      {"0,3,2,0", "0,2,3,0", "0,0,0,0"},
		"a task far behind the order": {"0,3,0,0", "0,2,0,1", "0,1,0,0"},
	} {
		call := `missingTasks({ counts: [%s] }, { counts: [%s] }, 1).join()`
		if got := browsertest.Eval[string](ops, fmt.Sprintf(call, test.rows, test.tasks)); got != test.want {
			t.Errorf("%s: %s tasks are missing, want %s", name, got, test.want)
		}
	}
	for call, want := range map[string]string{
		`missingTasks({ counts: [0, 8, 8, 0], estimated: true }, { counts: [0, 5, 3, 0] }, 1)`: "0,0,5,0",
		`missingTasks({ counts: [0, 8, 8, 0] }, { counts: [0, 5, 3, 0], estimated: true }, 1)`: "0,0,0,0",
		`missingTasks({ counts: [0, 8, 8, 0] }, null, 1)`:                                      "0,0,0,0",
	} {
		if got := browsertest.Eval[string](ops, call+".join()"); got != want {
			t.Errorf("%s: %s, want %s", call, got, want)
		}
	}
}

// TestPageMovesDeadline has an operator move the deadline of an order, later and then earlier. The customer's page
// must show the new deadline and the operator's reason without a reload. The deadline of an order that is paid
// meanwhile is not moved, and the operators' page must say why.
func TestPageMovesDeadline(t *testing.T) {
	shoptest.PageTest(t)
	p := orders.NewSite(t, testenv.Redis(t), envTimeout+"=5m").Serve(t)
	page := shoptest.ShopTab(t, p)
	still := page.MarkDocument()
	page.Click(shoptest.BuyBeans)
	page.WaitFor(shoptest.AnOrder+" .countdown", "4:")
	page.Click(shoptest.AnOrder + " summary")
	id := browsertest.Eval[string](page, `document.querySelector("[data-order]").dataset.order`)

	ops := shoptest.OpsTab(t, p)
	ops.Type("#whereis-id", id+kb.Enter)
	ops.WaitFor("#whereis-next", "It is pending.")
	move := func(minutes, reason string) {
		t.Helper()
		ops.Front()
		ops.Type("#move-deadline [name=minutes]", minutes)
		ops.Type("#move-deadline [name=reason]", reason)
		ops.Click("#move-deadline button")
	}
	moved := func(minutes, hours, reason string) {
		t.Helper()
		before := ops.Text("#whereis-next")
		move(minutes, reason)
		ops.WaitFor("#move-deadline [role=status]", "The deadline of the order "+id+" is ")
		ops.Until("the new deadline", func() bool { return ops.Text("#whereis-next") != before })
		page.Front()
		page.Until("a countdown from "+minutes+" minutes", func() bool {
			return strings.HasPrefix(page.Text(shoptest.AnOrder+" .countdown"), hours+":5")
		})
		page.WaitFor(shoptest.AnOrder+" .timeline", "by the shop: "+reason)
	}
	moved("600", "9", "the bank is away")
	ops.Front()
	ops.CheckLook("ops-move-deadline")
	moved("120", "1", "the bank is back")
	if timeline := page.Text(shoptest.AnOrder + " .timeline"); strings.Count(timeline, "deadline moved to ") != 2 {
		t.Errorf("the timeline is %q, want one in which the deadline is moved twice", timeline)
	}
	page.CheckLook("shop-moved-deadline")
	page.Click(shoptest.PayOrder)
	page.WaitFor(shoptest.AnOrder, "Paid at")
	if !still() {
		t.Error("the page reloaded itself")
	}

	ops.Expect("409")
	move("60", "too late")
	ops.WaitFor("#messages", "The order was paid at")
	ops.Type("#whereis-id", kb.Enter)
	ops.WaitFor("#whereis-next", "It was paid by the customer")
	if ops.Count("#move-deadline[hidden]") != 1 {
		t.Error("the page offers to move the deadline of a paid order")
	}
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
