package ops

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m, migrations.Up) }

// site has a table with one row, the queue of the tasks that time out its rows, and that of another kind of task.
// Nothing moves the tasks from the outbox to the queue.
type site struct {
	row    app.FoundRow
	rdb    redis.UniversalClient
	queue  *delay.Queue
	outbox *delay.Outbox
	kinds  app.Kinds
}

const (
	timeoutKind = "test.timeout"
	otherKind   = "test.other"
)

// timeToDue is the time from the creation of the row until it is due.
const timeToDue = 30 * time.Minute

// newSite returns a site whose row is pending and has its task in the outbox.
func newSite(t *testing.T) *site {
	t.Helper()
	_, db := parttest.OpenDB(t, testenv.Postgres(t), 5)
	rdb, err := delay.Connect(testenv.Redis(t), nil)
	testenv.Must(t, err)
	t.Cleanup(func() { rdb.Close() })
	s := &site{rdb: rdb, row: app.FoundRow{ID: uuid.NewString(), Kind: timeoutKind, Status: "pending"}}
	s.pass(0)
	for _, kind := range []string{otherKind, timeoutKind} {
		s.queue, err = delay.NewQueue(rdb, kind, 1)
		testenv.Must(t, err)
		s.outbox = delay.NewOutbox(db, kind)
		s.kinds = append(s.kinds, &app.Kind{Name: kind, Queue: s.queue, Outbox: s.outbox})
	}
	testenv.Exec(t, db, `INSERT INTO outbox (kind, task_id, due_at) VALUES ($1, $2, now() + interval '30 min')`,
		timeoutKind, s.row.ID)
	return s
}

// pass sets the age of the row.
func (s *site) pass(age time.Duration) {
	s.row.At = time.Now()
	s.row.DueAt = s.row.At.Add(timeToDue - age)
}

// find is the [Find] of the table.
func (s *site) find(_ context.Context, id string) ([]app.FoundRow, error) {
	if id != "" && id != s.row.ID {
		return nil, nil
	}
	return []app.FoundRow{s.row}, nil
}

// relay moves the task of the row from the outbox to the queue, where it is due after the time left.
func (s *site) relay(t *testing.T, left time.Duration) {
	t.Helper()
	m := delay.In(s.row.ID, left)
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

// want checks where the row is: the state of the task that times it out, which is its last one, and parts of the
// sentence.
func (s *site) want(t *testing.T, when, state string, parts ...string) where {
	t.Helper()
	found, err := readWhere(t.Context(), s.kinds, s.find, s.row.ID)
	testenv.Must(t, err)
	w := found[0]
	last := w.Tasks[len(w.Tasks)-1]
	if last.State != state || last.Kind != timeoutKind {
		t.Errorf("%s: the tasks are %+v, want the last to be %q", when, w.Tasks, state)
	}
	for _, part := range parts {
		if !strings.Contains(w.Next, part) {
			t.Errorf("%s: the sentence is %q, want %q in it", when, w.Next, part)
		}
	}
	return w
}

// TestWhere follows a row through all places where its task can be.
func TestWhere(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	w := s.want(t, "in the outbox", "absent", "It is pending.", "it times out at", "in the outbox for")
	if w.Status != "pending" || w.EndedAt != nil || w.Tasks[0].Outbox == nil {
		t.Errorf("the answer is %+v, want a pending row with a task in the outbox", w)
	}
	s.relay(t, timeToDue)
	w = s.want(t, "in Redis", "scheduled", "a worker takes its task in")
	if len(w.Tasks) != 1 || w.Tasks[0].Outbox != nil || w.Tasks[0].Left < 60 {
		t.Errorf("the tasks are %+v, want one that is not in the outbox", w.Tasks)
	}
	testenv.Must(t, s.kinds[0].Queue.Schedule(t.Context(), delay.In(s.row.ID, time.Hour)))
	w = s.want(t, "with another task", "scheduled", "a worker takes its task in")
	if len(w.Tasks) != 2 || w.Tasks[0].Kind != otherKind || w.Tasks[0].State != "scheduled" {
		t.Errorf("the tasks are %+v, want also one of the kind %s", w.Tasks, otherKind)
	}
	s.row.Held = true
	s.want(t, "held", "scheduled", "held while a second party may confirm it")
	s.row.Held = false
	testenv.Must(t, s.rdb.FlushDB(t.Context()).Err())
	s.want(t, "wiped", "absent", "Redis has no task of it")

	s.pass(timeToDue + time.Second)
	s.want(t, "overdue and wiped", "absent", "overdue by", "Redis has no task of it", "A sweep")
	s.relay(t, 0)
	s.want(t, "overdue and due", "scheduled", "overdue by", "no worker has claimed its task for")
	batch := s.claim(t)
	s.want(t, "overdue and leased", "leased", "a worker has claimed its task, and the lease ends in")
	_, err := s.queue.Retry(t.Context(), batch, delay.Requeue{ID: s.row.ID, In: time.Minute, Err: "a deadlock."})
	testenv.Must(t, err)
	s.want(t, "overdue and failed once", "scheduled", "a worker takes its task in",
		"after 1 failed attempts (a deadlock)")
	s.row.Blocker = "the seat is locked by the session 1"
	s.want(t, "blocked", "scheduled", "overdue by", "the seat is locked by the session 1. It times out after that.")

	s.row.Status, s.row.EndedAt, s.row.EndedBy = "expired", new(time.Now()), "worker"
	s.want(t, "timed out", "scheduled", "It was expired by the worker at")
	if found, err := readWhere(t.Context(), s.kinds, s.find, uuid.NewString()); err == nil || len(found) > 0 {
		t.Errorf("an unknown id gives %+v, %v; want an error", found, err)
	}
}

// TestWhereWithoutRedis asks while Redis does not answer.
func TestWhereWithoutRedis(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	testenv.Must(t, s.outbox.Delete(t.Context(), []delay.Message{delay.In(s.row.ID, 0)}))
	s.rdb.Close()
	s.want(t, "before its due time", "unknown", "It is pending.", "Redis does not answer")
	s.pass(timeToDue + time.Second)
	s.want(t, "overdue", "unknown", "overdue by", "Redis does not answer")
}

// TestSentence checks sentences that the tests above do not reach.
func TestSentence(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 31, 9, 41, 0, 0, time.UTC)
	paid := at.Add(-1500 * time.Millisecond)
	pending := func(overdue time.Duration) app.FoundRow {
		return app.FoundRow{Kind: "k", Status: "pending", DueAt: at, At: at.Add(overdue)}
	}
	for name, test := range map[string]struct {
		row   app.FoundRow
		tasks []task
		want  string
	}{
		"ended": {
			app.FoundRow{Status: "paid", DueAt: at, EndedAt: &paid, EndedBy: "provider"}, nil,
			"It was paid by the provider at 2026-01-31T09:40:58.500Z, and its due time was 2026-01-31T09:41:00.000Z.",
		},
		"a dead letter": {
			pending(12 * time.Second),
			[]task{{Kind: "other", State: "scheduled"}, {Kind: "k", State: "dead", Attempts: 10, Error: "no."}},
			"It is overdue by 12s: its task is a dead letter after 10 failed attempts (no), " +
				"and an operator can redrive it. A sweep of the reconciler times out what the workers miss.",
		},
		"leased": {
			pending(time.Second), []task{{Kind: "k", State: "leased", Left: 2}},
			"It is overdue by 1s: a worker has claimed its task, and the lease ends in 2s. " +
				"A sweep of the reconciler times out what the workers miss.",
		},
		"an ended lease": {
			pending(time.Minute), []task{{Kind: "k", State: "leased", Left: -30.0004}},
			"It is overdue by 1m0s: no worker has claimed its task for 30s. Check that a worker runs. " +
				"A sweep of the reconciler times out what the workers miss.",
		},
	} {
		w := where{FoundRow: test.row, Tasks: test.tasks}
		if got := w.sentence(); got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, test.want)
		}
	}
}
