package ops

import (
	"slices"
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

// site is a shop with the queue of the tasks that cancel its orders, and that of another kind of task. Nothing moves
// the tasks from the outbox to the queue.
type site struct {
	*ordertest.Shop
	rdb    redis.UniversalClient
	queue  *delay.Queue
	outbox *delay.Outbox
	kinds  app.Kinds
}

const otherKind = "test.other"

func newSite(t *testing.T) *site {
	t.Helper()
	rdb, err := delay.Connect(testenv.Redis(t))
	testenv.Must(t, err)
	t.Cleanup(func() { rdb.Close() })
	s := &site{Shop: ordertest.New(t), rdb: rdb}
	for _, kind := range []string{otherKind, order.CancelKind} {
		s.queue, err = delay.NewQueue(rdb, kind, 1)
		testenv.Must(t, err)
		s.outbox = delay.NewOutbox(s.DB, kind)
		s.kinds = append(s.kinds, &app.Kind{Name: kind, Queue: s.queue, Outbox: s.outbox})
	}
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

// find returns where the order with an id is, or the overdue orders for the id "".
func (s *site) find(t *testing.T, id string) []where {
	t.Helper()
	found, err := readWhere(t.Context(), s.kinds, s.Where, id)
	testenv.Must(t, err)
	return found
}

// want checks where an order is: the state of the task that cancels it, which is its last one, and parts of the
// sentence.
func (s *site) want(t *testing.T, when string, id uuid.UUID, state string, parts ...string) where {
	t.Helper()
	w := s.find(t, id.String())[0]
	last := w.Tasks[len(w.Tasks)-1]
	if last.State != state || last.Kind != order.CancelKind {
		t.Errorf("%s: the tasks are %+v, want the last to be %q", when, w.Tasks, state)
	}
	for _, part := range parts {
		if !strings.Contains(w.Next, part) {
			t.Errorf("%s: the sentence is %q, want %q in it", when, w.Next, part)
		}
	}
	return w
}

// TestWhere follows an order through all places where its task can be.
func TestWhere(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id, _ := s.place(t)
	w := s.want(t, "in the outbox", id, "absent", "waits for its payment", "it is cancelled at", "in the outbox for")
	if w.Status != "pending" || w.EndedAt != nil || w.DueAt.Sub(w.At) > ordertest.Timeout || w.Tasks[0].Outbox == nil {
		t.Errorf("the answer is %+v, want a pending order with its due time and a task in the outbox", w)
	}
	s.relay(t, id, ordertest.Timeout)
	w = s.want(t, "in Redis", id, "scheduled", "a worker takes its task in")
	if len(w.Tasks) != 1 || w.Tasks[0].Outbox != nil || w.Tasks[0].Left < 60 {
		t.Errorf("the tasks are %+v, want one that is not in the outbox", w.Tasks)
	}
	testenv.Must(t, s.kinds[0].Queue.Schedule(t.Context(), delay.In(id.String(), time.Hour)))
	w = s.want(t, "with another task", id, "scheduled", "a worker takes its task in")
	if len(w.Tasks) != 2 || w.Tasks[0].Kind != otherKind || w.Tasks[0].State != "scheduled" {
		t.Errorf("the tasks are %+v, want also one of the kind %s", w.Tasks, otherKind)
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
	s.want(t, "overdue and due", id, "scheduled", "overdue by", "no worker has claimed its task for")
	batch := s.claim(t)
	s.want(t, "overdue and leased", id, "leased", "a worker has claimed its task, and the lease ends in")
	_, err := s.queue.Retry(t.Context(), batch, delay.Requeue{ID: id.String(), In: time.Minute, Err: "a deadlock."})
	testenv.Must(t, err)
	s.want(t, "overdue and failed once", id, "scheduled", "a worker takes its task in",
		"after 1 failed attempts (a deadlock)")

	s.Deliver(t, id)
	w = s.want(t, "cancelled", id, "scheduled", "It was cancelled by the worker at")
	if w.EndedAt == nil || w.EndedBy != "worker" {
		t.Errorf("the answer is %+v, want when and by whom the order was ended", w)
	}
	if found, err := readWhere(t.Context(), s.kinds, s.Where, uuid.NewString()); err == nil || len(found) > 0 {
		t.Errorf("an unknown id gives %+v, %v; want an error", found, err)
	}
}

// TestWhereIsLockedOrder asks for an overdue order while another session has locked its product, or the order itself.
func TestWhereIsLockedOrder(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id, product := s.place(t)
	s.Expire(t, id)
	for name, lock := range map[string]struct {
		statement string
		id        uuid.UUID
	}{
		"the order":                       {`SELECT FROM orders WHERE id = $1 FOR UPDATE`, id},
		"the product " + product.String(): {`UPDATE products SET supply = supply WHERE id = $1`, product},
	} {
		release := testenv.HoldLock(t, s.DB, lock.statement, lock.id)
		testenv.Eventually(t, "the lock is older than a second", func() bool {
			return strings.Contains(s.find(t, id.String())[0].Next, name+" is locked by the session ")
		})
		blocker := s.find(t, id.String())[0].Blocker
		if !strings.Contains(blocker, "idle in transaction, in a transaction since 20") {
			t.Errorf("%s: the blocker is %q, want the state of the session and its age", name, blocker)
		}
		release()
		s.want(t, name+" is free", id, "absent", "in the outbox")
	}
	early, other := s.place(t)
	defer testenv.HoldLock(t, s.DB, `SELECT FROM products WHERE id = $1 FOR UPDATE`, other)()
	testenv.Eventually(t, "the lock is older than a second", func() bool {
		return testenv.Query[bool](t, s.DB, `
			SELECT EXISTS (
				SELECT FROM pg_stat_activity
				WHERE datname = current_database() AND state = 'idle in transaction'
				      AND xact_start < clock_timestamp() - interval '1 s'
			)`)
	})
	s.want(t, "locked before its due time", early, "absent", "waits for its payment")
}

// TestWhereAreOverdueOrders lists overdue orders, the longest overdue first.
func TestWhereAreOverdueOrders(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.place(t)
	if found := s.find(t, ""); found == nil || len(found) > 0 {
		t.Errorf("the overdue orders are %+v, want an empty list", found)
	}
	var want []string
	for i := range 21 {
		id, _ := s.place(t)
		s.Expire(t, id)
		s.Pass(t, id, time.Duration(i)*time.Minute)
		want = append(want, id.String())
	}
	slices.Reverse(want)
	var got []string
	for _, w := range s.find(t, "") {
		got = append(got, w.ID)
		if !strings.Contains(w.Next, "It is overdue by") || len(w.Tasks) != 1 {
			t.Errorf("the answer is %+v, want its task and that it is overdue", w)
		}
	}
	if !slices.Equal(got, want[:20]) {
		t.Errorf("the overdue orders are %v, want %v", got, want[:20])
	}
}

// TestWhereWithoutRedis asks while Redis does not answer.
func TestWhereWithoutRedis(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	id, _ := s.place(t)
	testenv.Must(t, s.outbox.Delete(t.Context(), []delay.Message{delay.In(id.String(), 0)}))
	s.rdb.Close()
	s.want(t, "before its due time", id, "unknown", "waits for its payment", "Redis does not answer")
	s.Expire(t, id)
	s.want(t, "overdue", id, "unknown", "overdue by", "Redis does not answer")
}

// TestSentence checks sentences that the tests above do not reach.
func TestSentence(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 31, 9, 41, 0, 0, time.UTC)
	paid := at.Add(-1500 * time.Millisecond)
	pending := func(overdue time.Duration) app.Row {
		return app.Row{Kind: "k", Status: "pending", DueAt: at, At: at.Add(overdue)}
	}
	for name, test := range map[string]struct {
		row   app.Row
		tasks []task
		want  string
	}{
		"paid elsewhere": {
			app.Row{Status: "paid", DueAt: at, EndedAt: &paid, EndedBy: "provider"}, nil,
			"It was paid by the provider at 2026-01-31T09:40:58.500Z, and its due time was 2026-01-31T09:41:00.000Z.",
		},
		"pending, without Redis": {
			pending(-time.Minute), nil,
			"It waits for its payment. Unless it is paid before, it is cancelled at 2026-01-31T09:41:00.000Z, " +
				"in 1m0s: the service has no Redis, so the reconciler cancels it.",
		},
		"overdue, without Redis": {
			pending(4 * time.Second), nil,
			"It is overdue by 4s: the service has no Redis, so the reconciler cancels it. " +
				"A sweep of the reconciler cancels what the workers miss.",
		},
		"a dead letter": {
			pending(12 * time.Second),
			[]task{{Kind: "other", State: "scheduled"}, {Kind: "k", State: "dead", Attempts: 10, Error: "no."}},
			"It is overdue by 12s: its task is a dead letter after 10 failed attempts (no), " +
				"and an operator can redrive it. A sweep of the reconciler cancels what the workers miss.",
		},
		"leased": {
			pending(time.Second), []task{{Kind: "k", State: "leased", Left: 2}},
			"It is overdue by 1s: a worker has claimed its task, and the lease ends in 2s. " +
				"A sweep of the reconciler cancels what the workers miss.",
		},
		"an ended lease": {
			pending(time.Minute), []task{{Kind: "k", State: "leased", Left: -30.0004}},
			"It is overdue by 1m0s: no worker has claimed its task for 30s. Check that a worker runs. " +
				"A sweep of the reconciler cancels what the workers miss.",
		},
	} {
		w := where{Row: test.row, Tasks: test.tasks}
		if got := w.sentence(); got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, test.want)
		}
	}
}
