package whereis

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/testenv"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m, migrations.Up) }

// site is a shop with the queue of the tasks that cancel its orders. Nothing moves the tasks from the outbox to the queue.
type site struct {
	*ordertest.Shop
	*Service
	rdb    redis.UniversalClient
	queue  *delay.Queue
	outbox *delay.Outbox
}

func newSite(t *testing.T) *site {
	t.Helper()
	rdb, err := delay.Connect(testenv.Redis(t))
	testenv.Must(t, err)
	t.Cleanup(func() { rdb.Close() })
	queue, err := delay.NewQueue(rdb, delay.Config{Kind: order.CancelKind})
	testenv.Must(t, err)
	s := &site{Shop: ordertest.New(t), rdb: rdb, queue: queue}
	s.outbox = delay.NewOutbox(s.DB, order.CancelKind)
	s.Service = New(s.Gorm, &app.Kinds{{Name: order.CancelKind, Queue: s.queue, Outbox: s.outbox}}, s.Shop.Service)
	return s
}

// place places an order of a product, whose task is in the outbox.
func (s *site) place(t *testing.T) (id, product uuid.UUID) {
	t.Helper()
	product = s.Product(t, 1)
	return s.MustPlace(t, s.Customer(t), ordertest.Line(product, 1)).ID, product
}

// relay moves the task of an order from the outbox to the queue, where it is due after the time left.
func (s *site) relay(t *testing.T, id uuid.UUID, left time.Duration) {
	t.Helper()
	m := delay.In(id.String(), left)
	testenv.Must(t, s.queue.Schedule(t.Context(), m))
	testenv.Must(t, s.outbox.Delete(t.Context(), []delay.Message{m}))
}

// claim leases the task that is due.
func (s *site) claim(t *testing.T) delay.Batch {
	t.Helper()
	batch, err := s.queue.Claim(t.Context(), 0, 1, time.Minute)
	testenv.Must(t, err)
	if len(batch.Tasks) != 1 {
		t.Fatalf("%d tasks are due, want 1", len(batch.Tasks))
	}
	return batch
}

// want checks the view of an order: the state of its first task, and the parts of the sentence.
func (s *site) want(t *testing.T, when string, id uuid.UUID, state string, parts ...string) *View {
	t.Helper()
	v, err := s.Where(t.Context(), id.String())
	testenv.Must(t, err)
	got := ""
	if len(v.Tasks) > 0 {
		got = v.Tasks[0].State
	}
	if got != state {
		t.Errorf("%s: the tasks are %+v, want the first to be %q", when, v.Tasks, state)
	}
	for _, part := range parts {
		if !strings.Contains(v.Next, part) {
			t.Errorf("%s: the sentence is %q, want %q in it", when, v.Next, part)
		}
	}
	return v
}

// TestWhere follows orders through all places where they can be.
func TestWhere(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id, product := s.place(t)
	v := s.want(t, "in the outbox", id, "absent", "waits for its payment", "a worker cancels it at", "in the outbox")
	if len(v.Rows) != 3 || v.DueAt.Sub(v.At) > ordertest.Timeout || v.Tasks[0].Outbox == nil {
		t.Errorf("the view is %+v, want the rows of 3 tables and the due time", v)
	}
	s.relay(t, id, ordertest.Timeout)
	if v := s.want(t, "in Redis", id, "scheduled", "a worker cancels it"); strings.Contains(v.Next, "outbox") || *v.Tasks[0].Left < 60 {
		t.Errorf("the view is %+v, want a task that is not in the outbox", v)
	}
	s.Hold(t, id)
	s.want(t, "held", id, "scheduled", "held while its customer pays it elsewhere")
	s.Release(t, id)
	s.relay(t, id, ordertest.Timeout)
	testenv.Must(t, s.rdb.FlushDB(t.Context()).Err())
	s.want(t, "wiped", id, "absent", "Redis has no task of it")

	s.Expire(t, id)
	s.want(t, "overdue and wiped", id, "absent", "overdue by", "Redis has no task of it", "A sweep")
	s.relay(t, id, 0)
	s.want(t, "overdue and due", id, "scheduled", "no worker has claimed it")
	batch := s.claim(t)
	s.want(t, "overdue and leased", id, "leased", fmt.Sprintf(":%d has claimed its task, and the lease ends in", os.Getpid()))
	_, err := s.queue.Retry(t.Context(), batch, delay.Requeue{ID: id.String(), In: time.Minute, Err: "a deadlock."})
	testenv.Must(t, err)
	s.want(t, "overdue and failed once", id, "scheduled", "a worker tries its task in", "1 failed attempt", "(a deadlock)")

	release := testenv.HoldLock(t, s.DB, `SELECT FROM products WHERE id = $1 FOR UPDATE`, product)
	testenv.Eventually(t, "the lock is older than a second", func() bool {
		return testenv.Query[bool](t, s.DB, `SELECT EXISTS (
			SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND state = 'idle in transaction' AND xact_start < clock_timestamp() - interval '1 second')`)
	})
	v = s.want(t, "overdue and locked", id, "scheduled", "the product "+product.String()+" is locked by the session ", "whose transaction began at", "The order is cancelled after that, unless it was paid")
	if len(v.Locks) != 1 || v.Locks[0].PID == nil || v.Locks[0].State == nil || *v.Locks[0].State != "idle in transaction" {
		t.Errorf("the locks are %+v, want that of one session that is idle in a transaction", v.Locks)
	}
	overdue, err := s.Overdue(t.Context())
	if err != nil || len(overdue) != 1 || overdue[0].OrderID != id {
		t.Errorf("the overdue orders are %+v, %v; want one", overdue, err)
	}
	if err := s.checkLocks(t.Context()); err == nil || !strings.Contains(err.Error(), "order "+id.String()+": It is overdue by") || !strings.Contains(err.Error(), "session") {
		t.Errorf("the check of locks returns %v, want the sentence about the order", err)
	}
	release()
	testenv.Must(t, s.checkLocks(t.Context()))

	s.Deliver(t, id)
	s.want(t, "cancelled", id, "scheduled", "It was cancelled by a worker at", "after its due time. Nothing more happens")
	testenv.Must(t, s.rdb.FlushDB(t.Context()).Err())
	s.want(t, "cancelled, without a task", id, "")
	if overdue, err := s.Overdue(t.Context()); err != nil || len(overdue) > 0 {
		t.Errorf("the overdue orders are %+v, %v; want none", overdue, err)
	}
	older, _ := s.place(t)
	s.Exec(t, `INSERT INTO order_events (order_id, type, actor, at) VALUES ($1, 'paid', 'customer', now())`, older)
	s.Exec(t, `UPDATE orders SET status = 'paid', paid_at = clock_timestamp() WHERE id = $1`, older)
	s.want(t, "paid by an older binary", older, "absent", "It was paid by its customer at")
	if v, err := s.Where(t.Context(), uuid.NewString()); v != nil || err != nil {
		t.Errorf("the view of an unknown order is %+v, %v; want none", v, err)
	}
}

// TestWhereWithoutRedis asks while Redis does not answer.
func TestWhereWithoutRedis(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id, _ := s.place(t)
	testenv.Must(t, s.outbox.Delete(t.Context(), []delay.Message{delay.In(id.String(), 0)}))
	s.rdb.Close()
	s.want(t, "before its due time", id, "unknown", "Redis does not answer. If it is still down then")
	s.Expire(t, id)
	s.want(t, "overdue", id, "unknown", "Redis does not answer. A sweep")
}

// TestSentence checks sentences that TestWhere does not reach.
func TestSentence(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 31, 9, 41, 0, 0, time.UTC)
	paid, cancelled := at.Add(-time.Minute), at.Add(3*time.Millisecond)
	due := Task{State: "scheduled", Left: seconds(-2 * time.Second)}
	const unclaimed = "It is overdue by 1s: its task is due, and no worker has claimed it. Check that a worker runs. A sweep of the reconciler cancels the order."
	for name, test := range map[string]struct {
		facts facts
		want  string
	}{
		"paid elsewhere, and owed": {
			facts{Status: order.Paid, DueAt: at, EndedAt: &paid, EndedBy: "provider", owed: true},
			"It was paid by the provider at 2026-01-31T09:40:00Z. " +
				"Something of it is owed or must be checked again, so it is not removed yet.",
		},
		"paid, by an older binary": {
			facts{Status: order.Paid, DueAt: at, EndedAt: &paid},
			"It was paid at 2026-01-31T09:40:00Z. Nothing more happens.",
		},
		"cancelled by the reconciler": {
			facts{Status: order.Cancelled, DueAt: at, EndedAt: &cancelled, EndedBy: "reconciler"},
			"It was cancelled by the reconciler at 2026-01-31T09:41:00Z, 3ms after its due time. Nothing more happens.",
		},
		"pending, without Redis": {
			facts{Status: order.Pending, DueAt: at, At: at.Add(-time.Minute), alone: true, task: Task{State: "absent"}},
			"It waits for its payment. Unless it is paid before, the reconciler cancels it at 2026-01-31T09:41:00Z, in 1m0s.",
		},
		"overdue, without Redis": {
			facts{Status: order.Pending, DueAt: at, At: at.Add(4 * time.Second), alone: true, task: Task{State: "absent"}},
			"It is overdue by 4s: the reconciler has not cancelled it yet. Check that a reconciler runs.",
		},
		"a dead letter": {
			facts{Status: order.Pending, DueAt: at, At: at.Add(-90 * time.Second), task: Task{State: "dead", Attempts: 10, Error: "no."}},
			"It waits for its payment. Unless it is paid before, the reconciler cancels it at 2026-01-31T09:41:00Z, in 1m30s. " +
				"Its task is a dead letter, after 10 failed attempts (no). Redrive it.",
		},
		"an overdue dead letter": {
			facts{Status: order.Pending, DueAt: at, At: at.Add(12 * time.Second), task: Task{State: "dead", Attempts: 10}},
			"It is overdue by 12s: its task is a dead letter, after 10 failed attempts. Each sweep of the reconciler tries the order. " +
				"Redrive the task when the cause is gone.",
		},
		"in the outbox": {
			facts{Status: order.Pending, DueAt: at, At: at.Add(1500 * time.Millisecond), task: Task{State: "absent", Outbox: seconds(2 * time.Second)}},
			"It is overdue by 1.5s: its task has waited in the outbox for 2s. Check that a relay runs and that Redis answers. " +
				"A sweep of the reconciler cancels the order.",
		},
		"locked by several sessions, and a worker met the lock": {
			facts{Status: order.Pending, DueAt: at, At: at.Add(time.Second), locks: []Lock{{Row: "order"}}, task: Task{State: "scheduled", Left: seconds(100 * time.Millisecond)}},
			"It is overdue by 1s: the order is locked by one or more other sessions of the database. The order is cancelled after that, unless it was paid.",
		},
		"locked by several sessions, and no worker met the lock": {
			facts{Status: order.Pending, DueAt: at, At: at.Add(time.Second), locks: []Lock{{Row: "order"}}, task: due},
			unclaimed,
		},
		"locked for a moment": {
			facts{Status: order.Pending, DueAt: at, At: at.Add(time.Second), locks: []Lock{{Row: "order", Since: new(at.Add(990 * time.Millisecond))}}, task: due},
			unclaimed,
		},
		"leased by an older version": {
			facts{Status: order.Pending, DueAt: at, At: at.Add(time.Second), task: Task{State: "leased", Left: seconds(2 * time.Second)}},
			"It is overdue by 1s: a worker has claimed its task, and the lease ends in 2s.",
		},
		"an ended lease": {
			facts{Status: order.Pending, DueAt: at, At: at.Add(time.Minute), task: Task{State: "leased", Left: seconds(-30 * time.Second)}},
			"It is overdue by 1m0s: the lease of its task has ended 30s ago, and no worker has claimed it again. Check that a worker runs. " +
				"A sweep of the reconciler cancels the order.",
		},
	} {
		if got := test.facts.sentence(); got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, test.want)
		}
	}
}
