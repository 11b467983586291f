package shop_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/remind"
	"example.com/shop/internal/shop"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// lead is the time between the reminder and the deadline of a test's order.
const lead = 5 * time.Minute

// reminding is a shop that reminds its customers.
type reminding struct {
	*ordertest.Shop
	handle delay.Handler
}

func newReminding(t testing.TB) *reminding {
	t.Helper()
	s := ordertest.New(t)
	cfg := remind.Config{Timeout: ordertest.Timeout, Statement: shop.RemindSQL, Notify: s.Notify}
	return &reminding{s, remind.Handler(s.Gorm, cfg, slog.New(slog.NewTextHandler(s.Log, nil)))}
}

// remind passes the tasks of orders to the reminders' handler, and returns the outcomes.
func (s *reminding) remind(t testing.TB, ids ...uuid.UUID) []delay.Outcome {
	t.Helper()
	return parttest.Handle(t, s.handle, ids...)
}

// TestRemind passes a batch of tasks to the handler twice: each order that is pending near its deadline gets one event.
func TestRemind(t *testing.T) {
	t.Parallel()
	s := newReminding(t)
	customer, product := s.Customer(t), s.Product(t, 100)
	for name, test := range map[string]struct {
		setup    string
		reminded bool
		again    time.Duration // until the task is due again; 0: it is done
	}{
		"in time":                      {"pass 25m", true, 0},
		"seconds before the end":       {"pass 29m50s", true, 0},
		"too early":                    {"", false, ordertest.Timeout - lead},
		"deadline extended":            {"pass 25m, extend", false, ordertest.Extension},
		"deadline moved earlier":       {"move earlier", true, 0},
		"held":                         {"hold, pass 25m", true, 0},
		"reminded, then extended":      {"pass 25m, remind, extend", true, ordertest.Extension},
		"reminded, then paid":          {"pass 25m, remind, pay", true, 0},
		"reminded, then moved earlier": {"pass 25m, remind, move earlier", true, 0},
		"reminded, then cancelled":     {"pass 25m, remind, cancel", true, 0},
		"reminded once more at end":    {"pass 25m, remind, pass 4m", true, 0},
		"overdue":                      {"pass 31m", false, 0},
		"held, and overdue":            {"hold, pass 31m", false, 0},
		"paid":                         {"pass 26m, pay", false, 0},
		"paid while held":              {"hold, pass 26m, pay held", false, 0},
		"cancelled":                    {"pass 26m, cancel", false, 0},
		"timed out":                    {"pass 31m, time out", false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			o := s.MustPlace(t, customer, ordertest.Line(product, 1))
			for step := range strings.SplitSeq(test.setup, ", ") {
				if step == "remind" {
					s.remind(t, o.ID)
				} else {
					s.Do(t, step, customer, o.ID)
				}
			}
			for range 2 {
				outcomes := s.remind(t, o.ID, uuid.New())
				again, ok := outcomes[0].Retry()
				if ok != (test.again > 0) || ok && !ordertest.Near(again, test.again) {
					t.Errorf("the task is due again in %v (%v), want %v", again, ok, test.again)
				}
				if outcomes[1] != delay.Done() {
					t.Errorf("the outcome for an unknown order is %+v, want done", outcomes[1])
				}
			}
			if reminded := slices.Contains(s.Trail(t, o.ID), "reminded worker"); reminded != test.reminded {
				t.Errorf("the trail is %q; the customer was reminded: %v, want %v", s.Trail(t, o.ID), reminded,
					test.reminded)
			}
			if test.setup == "pass 25m" && s.Notified.Of(o.CustomerID, o.ID) != 2 {
				t.Errorf("%d notifications, want 2: one for the placement, one for the reminder",
					s.Notified.Of(o.CustomerID, o.ID))
			}
		})
	}
	s.CheckTrails(t)
}

// TestSecondReminderIsRejected checks that the schema allows one reminder of an order.
func TestSecondReminderIsRejected(t *testing.T) {
	s := newReminding(t)
	o := s.MustPlace(t, s.Customer(t), ordertest.Line(s.Product(t, 1), 1))
	_, err := s.DB.ExecContext(t.Context(), `INSERT INTO order_events (order_id, type, actor, at)
		SELECT $1::uuid, 'reminded', 'worker', now() FROM generate_series(1, 2)`, o.ID)
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok || pg.ConstraintName != "order_events_reminded" {
		t.Errorf("the error is %v, want a violation of order_events_reminded", err)
	}
}

// TestRemindQueryPlan checks that the statement reads the orders of a batch by their ids, also if the statistics say
// that no order is pending.
func TestRemindQueryPlan(t *testing.T) {
	testenv.Slow(t, "fills the tables")
	t.Parallel()
	s := newReminding(t)
	s.FillTables(t)
	ids := testenv.Query[string](t, s.DB,
		`SELECT array_agg(id)::text FROM (SELECT id FROM orders WHERE status = 'pending' LIMIT 500) o`)
	params := fmt.Sprintf("'%s', 1000", ids)
	ordertest.CheckPlan(t, testenv.Explain(t, s.DB, shop.RemindSQL, params), "orders_pkey")
	s.Exec(t, `UPDATE orders SET status = 'paid', paid_at = created_at, ended_by = 'customer' WHERE status = 'pending'`)
	s.Exec(t, `VACUUM ANALYZE orders`)
	ordertest.CheckBatchPlan(t, testenv.Explain(t, s.DB, shop.RemindSQL, params))
}

// TestRemindSkipsLockedOrders has another session lock an order. The rest of the batch does not wait.
func TestRemindSkipsLockedOrders(t *testing.T) {
	s := newReminding(t)
	customer, product := s.Customer(t), s.Product(t, 2)
	locked, free := s.MustPlace(t, customer, ordertest.Line(product, 1)).ID, s.MustPlace(t, customer,
		ordertest.Line(product, 1)).ID
	s.Pass(t, locked, 25*time.Minute)
	s.Pass(t, free, 25*time.Minute)
	release := testenv.HoldLock(t, s.DB, `SELECT FROM orders WHERE id = $1 FOR UPDATE`, locked)
	outcomes := s.remind(t, locked, free)
	if outcomes[0] != delay.RetryIn(100*time.Millisecond) || outcomes[1] != delay.Done() {
		t.Errorf("outcomes are %+v, want the locked order in 100 ms, and done", outcomes)
	}
	release()
	if s.remind(t, locked)[0] != delay.Done() || len(s.Trail(t, locked)) != 2 {
		t.Errorf("the trail is %q, want a reminder after the lock was released", s.Trail(t, locked))
	}
}

// TestNoReminderAfterTheEnd pays and cancels orders, the last ones first, while their reminders are delivered, each
// several times.
func TestNoReminderAfterTheEnd(t *testing.T) {
	t.Parallel()
	s := newReminding(t)
	customer := s.Customer(t)
	ids := s.PendingOrders(t, customer, 600)
	s.Exec(t, `UPDATE orders SET expires_at = clock_timestamp() + interval '4 min'`)
	var racers sync.WaitGroup
	for range 2 {
		racers.Go(func() {
			for some := range slices.Chunk(ids, 7) {
				s.remind(t, some...)
			}
		})
	}
	racers.Go(func() {
		for i, id := range slices.Backward(ids) {
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
	if n := testenv.Query[int](t, s.DB, `SELECT count(*) FROM order_events WHERE type = 'reminded'`); n == 0 {
		t.Error("no order was reminded before its end")
	}
	s.CheckTrails(t)
}

// TestRemindErrors checks that a reminder is dropped if it alone causes an error, and postponed in an outage.
func TestRemindErrors(t *testing.T) {
	t.Parallel()
	s := newReminding(t)
	customer, product := s.Customer(t), s.Product(t, 2)
	good, bad := s.MustPlace(t, customer, ordertest.Line(product, 1)).ID, s.MustPlace(t, customer,
		ordertest.Line(product, 1)).ID
	s.Pass(t, good, 25*time.Minute)
	s.Pass(t, bad, 25*time.Minute)
	s.Exec(t, `
		CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'rejected'; END $$;
		CREATE TRIGGER reject BEFORE INSERT ON order_events FOR EACH ROW WHEN (NEW.order_id = '`+bad.String()+`')
			EXECUTE FUNCTION reject()`)
	tasks := []delay.Task{{ID: good.String()}, {ID: bad.String()}}
	if outcomes, err := s.handle(t.Context(), tasks); err == nil {
		t.Errorf("a batch with an order that causes an error returns %+v, want the error, so that the worker halves "+
			"the batch", outcomes)
	}
	for _, task := range tasks {
		if outcomes, err := s.handle(t.Context(), []delay.Task{task}); err != nil || outcomes[0] != delay.Done() {
			t.Errorf("a batch of one task returns %+v, %v; want done", outcomes, err)
		}
	}

	testenv.DisablePostgres(t, s.URL)
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ctx := range []context.Context{t.Context(), stopped} {
		_, err := s.handle(ctx, tasks)
		if answered, outage := delay.IsOutage(err); !outage || answered {
			t.Errorf("without a database, or in a worker that stops, the error is %v, want an outage", err)
		}
	}
}

// TestReminderIsScheduled places an order, and looks for the task of its reminder.
func TestReminderIsScheduled(t *testing.T) {
	a := newTestApp(t, testenv.Redis(t), 1)
	testenv.Must(t, order.NewStore(a.DB).SeedProducts(t.Context()))
	product := testenv.Query[string](t, a.Pool, `SELECT id FROM products LIMIT 1`)
	post(t, a, uuid.New(), "/api/orders", fmt.Sprintf(`{"items":[{"product_id":%q,"quantity":1}]}`, product))
	id := testenv.Query[string](t, a.Pool, `SELECT id FROM orders`)
	queue, err := delay.NewQueue(a.Redis, shop.RemindKind, 1)
	testenv.Must(t, err)
	testenv.Eventually(t, "the reminder is due 5 min before the deadline, in half an hour", func() bool {
		tasks, err := queue.Locate(t.Context(), []string{id})
		testenv.Must(t, err)
		left := tasks[0].Left
		return tasks[0].State == delay.Scheduled && left > 20*time.Minute && left <= 30*time.Minute-lead
	})
}
