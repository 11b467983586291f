package order_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// reminderLead is the time between the reminder and the deadline of a test's order.
const reminderLead = 5 * time.Minute

// remind passes the tasks of orders to the reminders' handler, and returns the outcomes.
func (s *shop) remind(t testing.TB, ids ...uuid.UUID) []delay.Outcome {
	t.Helper()
	return parttest.Handle(t, s.Remind, ids...)
}

// TestRemind passes a batch of tasks to the handler twice: each order that is pending near its deadline gets one event.
func TestRemind(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer, product := s.customer(t), s.product(t, 100)
	for name, test := range map[string]struct {
		setup    string
		reminded bool
		again    time.Duration // until the task is due again; 0: it is done
	}{
		"in time":                   {"pass 25m", true, 0},
		"a second before the end":   {"pass 29m59s", true, 0},
		"too early":                 {"", false, timeout - reminderLead},
		"deadline extended":         {"pass 25m, extend", false, extension},
		"deadline brought forward":  {"close", true, 0},
		"held":                      {"hold, pass 25m", true, 0},
		"held past its deadline":    {"hold, pass 31m", false, 0},
		"being cancelled":           {"hold, cancel, pass 25m", false, 0},
		"overdue":                   {"pass 30m", false, 0},
		"paid":                      {"pass 25m, pay", false, 0},
		"cancelled":                 {"pass 25m, cancel", false, 0},
		"timed out":                 {"pass 31m, time out", false, 0},
		"paid before it was time":   {"pay", false, 0},
		"reminded, then extended":   {"pass 25m, remind, extend", true, extension},
		"reminded, then cancelled":  {"pass 25m, remind, cancel", true, 0},
		"reminded once more at end": {"pass 25m, remind, pass 4m", true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			o := s.place(t, customer, line(product, 1))
			for step := range splitSteps(test.setup) {
				if err := s.step(t, step, customer, product, o.ID); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				outcomes := s.remind(t, o.ID, uuid.New())
				again, ok := outcomes[0].Retry()
				if ok != (test.again > 0) || ok && !near(again, test.again) {
					t.Errorf("the task is due again in %v (%v), want %v", again, ok, test.again)
				}
				if outcomes[1] != delay.Done() {
					t.Errorf("the outcome for an unknown order is %+v, want done", outcomes[1])
				}
			}
			if reminded := slices.Contains(s.trail(t, o.ID), "reminded worker"); reminded != test.reminded {
				t.Errorf("the trail is %q; the customer was reminded: %v, want %v", s.trail(t, o.ID), reminded, test.reminded)
			}
			if test.setup == "pass 25m" && s.notified.Of(o.CustomerID, o.ID) != 2 {
				t.Errorf("%d notifications, want 2: one for the placement, one for the reminder", s.notified.Of(o.CustomerID, o.ID))
			}
		})
	}
	s.checkTrails(t)
}

// TestRemindSkipsLockedOrders has another session hold an order. The rest of the batch does not wait.
func TestRemindSkipsLockedOrders(t *testing.T) {
	s := newShop(t)
	customer, product := s.customer(t), s.product(t, 2)
	locked, free := s.place(t, customer, line(product, 1)).ID, s.place(t, customer, line(product, 1)).ID
	s.pass(t, locked, 25*time.Minute)
	s.pass(t, free, 25*time.Minute)
	release := testenv.HoldLock(t, s.db, `SELECT FROM orders WHERE id = $1 FOR UPDATE`, locked)
	outcomes := s.remind(t, locked, free)
	if outcomes[0] != delay.RetryIn(100*time.Millisecond) || outcomes[1] != delay.Done() {
		t.Errorf("outcomes are %+v, want the locked order in 100 ms, and done", outcomes)
	}
	release()
	if s.remind(t, locked)[0] != delay.Done() || len(s.trail(t, locked)) != 2 {
		t.Errorf("the trail is %q, want a reminder after the lock was released", s.trail(t, locked))
	}
}

// TestNoReminderAfterTheEnd pays and cancels orders while their reminders are delivered, each several times.
func TestNoReminderAfterTheEnd(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer := s.insertCustomer(t)
	ids := s.pendingOrders(t, customer, 600)
	s.exec(t, `UPDATE orders SET expires_at = clock_timestamp() + interval '4 min'`)
	var racers sync.WaitGroup
	for range 2 {
		racers.Go(func() {
			for some := range slices.Chunk(ids, 7) {
				s.remind(t, some...)
			}
		})
	}
	racers.Go(func() {
		for i, id := range ids {
			var err error
			if i%2 == 0 {
				_, err = s.Pay(t.Context(), customer, id)
			} else {
				_, err = s.Cancel(t.Context(), customer, id)
			}
			if err != nil {
				t.Error(err)
			}
		}
	})
	racers.Wait()
	if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM order_events WHERE type = 'reminded'`); n == 0 {
		t.Error("no order was reminded before its end: the test is too slow")
	}
	s.checkTrails(t)
}

// TestRemindErrors checks that a reminder never fails.
func TestRemindErrors(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer, product := s.customer(t), s.product(t, 2)
	good, bad := s.place(t, customer, line(product, 1)).ID, s.place(t, customer, line(product, 1)).ID
	s.pass(t, good, 25*time.Minute)
	s.pass(t, bad, 25*time.Minute)
	s.exec(t, `
		CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'rejected'; END $$;
		CREATE TRIGGER reject BEFORE INSERT ON order_events FOR EACH ROW WHEN (NEW.order_id = '`+bad.String()+`') EXECUTE FUNCTION reject()`)
	tasks := []delay.Task{{ID: good.String()}, {ID: bad.String()}}
	if outcomes, err := s.Remind(t.Context(), tasks); err == nil {
		t.Errorf("a batch with an order that causes an error returns %+v, want the error, so that the worker halves the batch", outcomes)
	}
	for _, task := range tasks {
		if outcomes, err := s.Remind(t.Context(), []delay.Task{task}); err != nil || outcomes[0] != delay.Done() {
			t.Errorf("a batch of one task returns %+v, %v; want done", outcomes, err)
		}
	}

	testenv.DisablePostgres(t, s.url)
	outcomes, err := s.Remind(t.Context(), tasks)
	if err != nil {
		t.Fatal(err)
	}
	for _, outcome := range outcomes {
		if in, ok := outcome.Retry(); !ok || in < time.Second/2 || in > 3*time.Second/2 {
			t.Errorf("without a database the outcome is %+v, want the task again in about a second", outcome)
		}
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if outcomes, err := s.Remind(stopped, tasks); err != nil || outcomes[0] != delay.RetryIn(0) {
		t.Errorf("a worker that stops gets %+v, %v; want the tasks again at once", outcomes, err)
	}
}

// scheduled is a queue that records the tasks. Schedule waits for open, and returns err.
type scheduled struct {
	mu      sync.Mutex
	batches [][]delay.Message
	open    chan struct{} // nil: Schedule does not wait
	err     error
}

func (q *scheduled) Schedule(ctx context.Context, msgs ...delay.Message) error {
	if q.open != nil {
		<-q.open
	}
	if _, ok := ctx.Deadline(); !ok {
		return errors.New("the context has no deadline")
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.batches = append(q.batches, slices.Clone(msgs))
	return q.err
}

func (q *scheduled) ids() (ids []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, b := range q.batches {
		for _, m := range b {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// dropped returns the number of reminders that were not scheduled.
func dropped(t *testing.T, reg *prometheus.Registry) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "order_reminders_dropped_total" {
		t.Fatalf("the metrics are %v, %v; want order_reminders_dropped_total", families, err)
	}
	return families[0].GetMetric()[0].GetCounter().GetValue()
}

// TestRemindersAreScheduledInBatches adds reminders while the queue does not answer. Add does not wait, and the reminders
// that do not fit into the buffer are dropped. Those that wait when the process stops are scheduled.
func TestRemindersAreScheduledInBatches(t *testing.T) {
	const added = 10_000
	queue, reg := &scheduled{open: make(chan struct{})}, prometheus.NewRegistry()
	r := order.NewReminders(queue, slog.New(slog.DiscardHandler), reg)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	for i := range added {
		r.Add(fmt.Sprint(i), time.Minute)
	}
	lost := dropped(t, reg)
	if lost == 0 || lost > added/2 {
		t.Errorf("%v of %d reminders were dropped, want some, but less than half", lost, added)
	}
	stop()
	close(queue.open)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := len(queue.ids()); float64(n)+lost != added {
		t.Errorf("%d reminders scheduled and %v dropped, want %d in all", n, lost, added)
	}
	if n := len(queue.batches); n > 100 {
		t.Errorf("%d batches for %d reminders, want at most 100", n, len(queue.ids()))
	}
	if left := queue.batches[0][0].Left(); !near(left, time.Minute) {
		t.Errorf("the first reminder is due in %v, want about a minute", left)
	}
}

// TestRemindersAreDroppedOnError has a queue that fails.
func TestRemindersAreDroppedOnError(t *testing.T) {
	queue, reg := &scheduled{err: errors.New("down")}, prometheus.NewRegistry()
	r := order.NewReminders(queue, slog.New(slog.DiscardHandler), reg)
	r.Add("a", 0)
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Run(stopped); err != nil || dropped(t, reg) != 1 {
		t.Errorf("Run returns %v, %v reminders were dropped; want no error and 1", err, dropped(t, reg))
	}
}

// TestPlacedOrderIsReminded places orders, and runs the reminders and their worker on a real queue.
func TestPlacedOrderIsReminded(t *testing.T) {
	t.Parallel()
	rdb, err := delay.Connect(testenv.Redis(t))
	if err != nil {
		t.Fatal(err)
	}
	defer rdb.Close()
	queue, err := delay.NewQueue(rdb, delay.Config{Kind: order.RemindKind})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	reminders := order.NewReminders(queue, log, prometheus.NewRegistry())
	// The reminder is due two thirds of the time after the placement.
	s := newShop(t, func(c *order.Config) { c.Timeout = 1500 * time.Millisecond })
	s.RemindWith(reminders)
	worker := delay.NewWorker(queue, s.Remind, delay.WorkerConfig{}, log, prometheus.NewRegistry())
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = reminders.Run(ctx) })
	running.Go(func() { _ = worker.Run(ctx) })
	defer running.Wait()
	defer stop()

	customer, product := s.customer(t), s.product(t, 4)
	unpaid, paid := s.place(t, customer, line(product, 1)), s.place(t, customer, line(product, 1))
	if _, _, err := s.Place(t.Context(), customer, order.Placement{Lines: []order.Line{line(product, 9)}}); err == nil {
		t.Fatal("an order of 9 units was accepted")
	}
	if _, err := s.Pay(t.Context(), customer, paid.ID); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "no task of a reminder is left", func() bool {
		depth, err := queue.Depth(t.Context())
		return err == nil && depth == delay.Depth{} && len(s.trail(t, unpaid.ID)) == 2
	})
	if got := s.trail(t, paid.ID); slices.Contains(got, "reminded worker") {
		t.Errorf("the trail of the paid order is %q, want no reminder", got)
	}
	events, err := s.Events(t.Context(), customer, unpaid.ID)
	if err != nil || events[1].At.Before(unpaid.ExpiresAt.Add(-500*time.Millisecond)) || !events[1].At.Before(unpaid.ExpiresAt) {
		t.Errorf("the trail is %+v, %v; want the reminder at most 500 ms before %v", events, err, unpaid.ExpiresAt)
	}
}
