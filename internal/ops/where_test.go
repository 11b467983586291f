package ops

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/app"
	"example.com/shop/internal/delay"
	"example.com/shop/internal/testenv"
	"example.com/shop/migrations"
)

func TestMain(m *testing.M) { testenv.Main(m, migrations.Up) }

// TestWhere follows the task of a row: from the outbox to Redis, where it fails once, and is leased. There is a task of
// another kind with the same id. In the end Redis does not answer.
func TestWhere(t *testing.T) {
	t.Parallel()
	k := newSeats(t, 1)
	row := app.FoundRow{ID: uuid.NewString(), Kind: k.Name, Status: "pending", At: time.Now(), DueAt: time.Now()}
	otherQueue, err := delay.NewQueue(k.base.Redis, "other", 1)
	testenv.Must(t, err)
	kinds := app.Kinds{k.Kind, {Name: "other", Queue: otherQueue, Outbox: delay.NewOutbox(k.base.Pool, "other")}}
	find := func(_ context.Context, id string) ([]app.FoundRow, error) {
		if id != row.ID {
			return nil, nil
		}
		return []app.FoundRow{row}, nil
	}
	expect := func(want string) {
		t.Helper()
		found, err := readWhere(t.Context(), kinds, find, row.ID)
		testenv.Must(t, err)
		var tasks []string
		for _, task := range found[0].Tasks {
			tasks = append(tasks, fmt.Sprintf("%s %s, in the outbox: %v, failed %d %s",
				task.Kind, task.State, task.Outbox != nil, task.Attempts, task.Error))
		}
		if got := strings.Join(tasks, "; "); got != want || found[0].Next == "" {
			t.Errorf("the tasks are %q, and next %q, want %q and a sentence", got, found[0].Next, want)
		}
	}
	claim := func() delay.Batch {
		batch, err := k.Queue.Claim(t.Context(), 0, 1, time.Hour)
		testenv.Must(t, err)
		return batch
	}

	testenv.Exec(t, k.base.Pool, `INSERT INTO outbox (kind, task_id, due_at) VALUES ($1, $2, now())`, k.Name, row.ID)
	expect("seats absent, in the outbox: true, failed 0 ")
	testenv.Must(t, k.Queue.Schedule(t.Context(), delay.In(row.ID, 0)))
	testenv.Must(t, k.Outbox.Delete(t.Context(), []delay.Message{delay.In(row.ID, 0)}))
	expect("seats scheduled, in the outbox: false, failed 0 ")
	testenv.Must(t, otherQueue.Schedule(t.Context(), delay.In(row.ID, time.Hour)))
	_, err = k.Queue.Retry(t.Context(), claim(), delay.Requeue{ID: row.ID, Err: "a deadlock."})
	testenv.Must(t, err)
	expect("seats scheduled, in the outbox: false, failed 1 a deadlock.; " +
		"other scheduled, in the outbox: false, failed 0 ")
	testenv.Must(t, k.base.Redis.Del(t.Context(), "delay:{other:0}:due").Err())
	claim()
	expect("seats leased, in the outbox: false, failed 1 a deadlock.")
	k.base.Redis.Close()
	expect("seats unknown, in the outbox: false, failed 0 ; other unknown, in the outbox: false, failed 0 ")
	if found, err := readWhere(t.Context(), kinds, find, uuid.NewString()); err == nil || len(found) > 0 {
		t.Errorf("an unknown id gives %+v, %v; want an error", found, err)
	}
}

// TestSentence checks the sentence about a row in each state, with its task in each state.
func TestSentence(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 31, 9, 41, 0, 0, time.UTC)
	paid := at.Add(-1500 * time.Millisecond)
	pending := func(overdue time.Duration) app.FoundRow {
		return app.FoundRow{Kind: "k", Status: "pending", DueAt: at, At: at.Add(overdue)}
	}
	held, blocked := pending(-time.Minute), pending(time.Second)
	held.Held, blocked.Blocker = true, "the seat is locked by the session 1"
	waited := 3.0
	const soon = "It is pending. Unless it ends before, it times out at 2026-01-31T09:41:00.000Z, in 1m0s: "
	const sweep = " A sweep of the reconciler times out what the workers miss."
	for _, test := range []struct {
		row  app.FoundRow
		task task
		want string
	}{
		{pending(-time.Minute), task{State: "absent", Outbox: &waited},
			soon + "its task has waited for a relay in the outbox for 3s."},
		{pending(-time.Minute), task{State: "scheduled", Left: 60}, soon + "a worker takes its task in 1m0s."},
		{pending(-time.Minute), task{State: "absent"},
			soon + "Redis has no task of it until a sweep of the reconciler adds one."},
		{pending(-time.Minute), task{State: "unknown"},
			soon + "Redis does not answer, and meanwhile the reconciler times out the rows."},
		{held, task{State: "scheduled", Left: 60},
			"It is held while a second party may confirm it, at the latest until 2026-01-31T09:41:00.000Z, for 1m0s: " +
				"a worker takes its task in 1m0s."},
		{pending(time.Minute), task{State: "scheduled", Left: -30.0004},
			"It is overdue by 1m0s: no worker has claimed its task for 30s. Check that a worker runs." + sweep},
		{pending(time.Minute), task{State: "leased", Left: -30.0004},
			"It is overdue by 1m0s: no worker has claimed its task for 30s. Check that a worker runs." + sweep},
		{pending(time.Second), task{State: "leased", Left: 2},
			"It is overdue by 1s: a worker has claimed its task, and the lease ends in 2s." + sweep},
		{pending(time.Second), task{State: "scheduled", Left: 60, Attempts: 1, Error: "a deadlock."},
			"It is overdue by 1s: a worker takes its task in 1m0s after 1 failed attempts (a deadlock)." + sweep},
		{pending(12 * time.Second), task{State: "dead", Attempts: 10, Error: "no."},
			"It is overdue by 12s: its task is a dead letter after 10 failed attempts (no), " +
				"and an operator can redrive it." + sweep},
		{blocked, task{State: "scheduled"},
			"It is overdue by 1s: the seat is locked by the session 1. It times out after that."},
		{app.FoundRow{Status: "paid", DueAt: at, EndedAt: &paid, EndedBy: "provider"}, task{},
			"It was paid by the provider at 2026-01-31T09:40:58.500Z, and its due time was 2026-01-31T09:41:00.000Z."},
	} {
		test.task.Kind = "k"
		w := where{FoundRow: test.row, Tasks: []task{{Kind: "other", State: "scheduled"}, test.task}}
		if got := w.sentence(); got != test.want {
			t.Errorf("%+v:\n got %s\nwant %s", test.task, got, test.want)
		}
	}
}
