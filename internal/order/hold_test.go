package order_test

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// holdTime is the time from the deadline of an order that [shop.hold] holds to the end of the hold.
const holdTime = 5 * time.Minute

// holdSQL holds a pending order, as the package that holds orders does.
const holdSQL = `
	WITH held AS (
		UPDATE orders SET hold_until = expires_at + interval '5 min'
		WHERE id = $1 AND status = 'pending' AND hold_until IS NULL AND cancel_requested_at IS NULL
		  AND expires_at > clock_timestamp()
		RETURNING id
	)
	INSERT INTO order_events (order_id, type, actor, at) SELECT id, 'held', 'customer', clock_timestamp() FROM held RETURNING id`

// releaseSQL ends the hold of a pending order, and owes the task that cancels it, because its due time becomes earlier.
const releaseSQL = `
	WITH released AS (
		UPDATE orders SET hold_until = NULL WHERE id = $1 AND status = 'pending' AND hold_until IS NOT NULL RETURNING id
	), owed AS (
		INSERT INTO outbox (kind, task_id, due_at) SELECT 'order.cancel', id::text, clock_timestamp() FROM released
		ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
	)
	INSERT INTO order_events (order_id, type, actor, at) SELECT id, 'released', 'provider', clock_timestamp() FROM released`

// payHeldSQL pays a held order before its hold ends.
const payHeldSQL = `
	WITH paid AS (
		UPDATE orders SET status = 'paid', paid_at = clock_timestamp()
		WHERE id = $1 AND status = 'pending' AND hold_until > clock_timestamp()
		RETURNING id, paid_at
	)
	INSERT INTO order_events (order_id, type, actor, at) SELECT id, 'paid', 'provider', paid_at FROM paid`

func (s *shop) hold(t testing.TB, id uuid.UUID)    { t.Helper(); s.exec(t, holdSQL, id) }
func (s *shop) release(t testing.TB, id uuid.UUID) { t.Helper(); s.exec(t, releaseSQL, id) }
func (s *shop) payHeld(t testing.TB, id uuid.UUID) { t.Helper(); s.exec(t, payHeldSQL, id) }

// steps are what can happen to an order. Each returns the error of the operation, if it has one.
type steps map[string]func(t *testing.T, s *shop, customer, product, id uuid.UUID) error

// TestOperationsInEachState does each operation on an order in each state. Its results are written as the code of the
// error or "ok", the status of the order after the operation, the events that the operation added, and the kinds of task
// that it owes.
func TestOperationsInEachState(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for state, test := range map[string]struct {
		setup   string            // steps, separated by commas
		results map[string]string // by operation; a missing operation is "ok" and changes nothing
	}{
		"pending": {"", map[string]string{
			"pay":    "ok paid: paid customer",
			"cancel": "ok cancelled customer: cancelled customer",
			"extend": "ok pending: extended customer",
			"close":  "ok pending: brought_forward operator owes order.cancel",
		}},
		"near the deadline": {"pass 26m", map[string]string{
			"pay":    "ok paid: paid customer",
			"cancel": "ok cancelled customer: cancelled customer",
			"extend": "ok pending: extended customer",
			"remind": "ok pending: reminded worker",
			"close":  "ok pending: brought_forward operator owes order.cancel",
		}},
		"reminded": {"pass 26m, remind", map[string]string{
			"pay":    "ok paid: paid customer",
			"cancel": "ok cancelled customer: cancelled customer",
			"extend": "ok pending: extended customer",
			"close":  "ok pending: brought_forward operator owes order.cancel",
		}},
		"extended": {"extend", map[string]string{
			"pay":    "ok paid: paid customer",
			"cancel": "ok cancelled customer: cancelled customer",
			"extend": "not-extendable pending",
			"close":  "ok pending: brought_forward operator owes order.cancel",
		}},
		"extended beyond its first deadline": {"extend, pass 31m", map[string]string{
			"pay":    "ok paid: paid customer",
			"cancel": "ok cancelled customer: cancelled customer",
			"extend": "not-extendable pending",
			"close":  "ok pending: brought_forward operator owes order.cancel",
		}},
		"brought forward": {"close", map[string]string{
			"pay":    "ok paid: paid customer",
			"cancel": "ok cancelled customer: cancelled customer",
			"extend": "ok pending: extended customer",
			"remind": "ok pending: reminded worker",
		}},
		"held": {"hold", map[string]string{
			"pay":    "checkout-open pending",
			"cancel": "ok pending: cancel_requested customer owes test.settle",
			"extend": "ok pending: extended customer",
			"close":  "ok pending: brought_forward operator owes order.cancel test.settle",
		}},
		"held near the deadline": {"hold, pass 26m", map[string]string{
			"pay":    "checkout-open pending",
			"cancel": "ok pending: cancel_requested customer owes test.settle",
			"extend": "ok pending: extended customer",
			"remind": "ok pending: reminded worker",
			"close":  "ok pending: brought_forward operator owes order.cancel test.settle",
		}},
		"held and released": {"hold, release", map[string]string{
			"pay":    "ok paid: paid customer",
			"cancel": "ok cancelled customer: cancelled customer",
			"extend": "ok pending: extended customer",
			"close":  "ok pending: brought_forward operator owes order.cancel",
		}},
		"held and extended": {"hold, extend", map[string]string{
			"pay":    "checkout-open pending",
			"cancel": "ok pending: cancel_requested customer owes test.settle",
			"extend": "not-extendable pending",
			"close":  "ok pending: brought_forward operator owes order.cancel test.settle",
		}},
		"held past the deadline": {"hold, pass 31m", map[string]string{
			"pay":    "deadline-passed pending",
			"cancel": "deadline-passed pending",
			"extend": "deadline-passed pending",
		}},
		"hold over": {"hold, pass 36m", map[string]string{
			"pay":      "deadline-passed pending",
			"cancel":   "deadline-passed pending",
			"extend":   "deadline-passed pending",
			"time out": "ok cancelled timeout: cancelled worker",
		}},
		"released past the deadline": {"hold, pass 31m, release", map[string]string{
			"pay":      "deadline-passed pending",
			"cancel":   "deadline-passed pending",
			"extend":   "deadline-passed pending",
			"time out": "ok cancelled timeout: cancelled worker",
		}},
		"being cancelled": {"hold, cancel", map[string]string{
			"pay":    "order-cancelling pending",
			"extend": "not-extendable pending",
			"close":  "ok pending: brought_forward operator owes order.cancel test.settle",
		}},
		"being cancelled near the deadline": {"hold, cancel, pass 26m", map[string]string{
			"pay":    "order-cancelling pending",
			"extend": "not-extendable pending",
			"close":  "ok pending: brought_forward operator owes order.cancel test.settle",
		}},
		"being cancelled past the deadline": {"hold, cancel, pass 31m", map[string]string{
			"pay":    "order-cancelling pending",
			"extend": "deadline-passed pending",
		}},
		"being cancelled, hold over": {"hold, cancel, pass 36m", map[string]string{
			"pay":      "order-cancelling pending",
			"extend":   "deadline-passed pending",
			"time out": "ok cancelled customer: cancelled worker",
		}},
		"being cancelled, released": {"hold, cancel, release", map[string]string{
			"pay":      "order-cancelling pending",
			"cancel":   "ok cancelled customer: cancelled customer",
			"extend":   "not-extendable pending",
			"time out": "ok cancelled customer: cancelled worker",
		}},
		"being cancelled, released past the deadline": {"hold, cancel, pass 31m, release", map[string]string{
			"pay":      "order-cancelling pending",
			"cancel":   "ok cancelled customer: cancelled customer",
			"extend":   "deadline-passed pending",
			"time out": "ok cancelled customer: cancelled worker",
		}},
		"overdue": {"pass 31m", map[string]string{
			"pay":      "deadline-passed pending",
			"cancel":   "deadline-passed pending",
			"extend":   "deadline-passed pending",
			"time out": "ok cancelled timeout: cancelled worker",
		}},
		"paid":                                  {"pay", endedPaid},
		"paid near the deadline":                {"pass 26m, pay", endedPaid},
		"paid while held":                       {"hold, pay held", endedPaid},
		"paid after the deadline":               {"hold, pass 31m, pay held", endedPaid},
		"paid while being cancelled":            {"hold, cancel, pay held", endedPaid},
		"paid, held after an extension":         {"extend, hold, pass 41m, pay held", endedPaid},
		"cancelled":                             {"cancel", endedByCustomer},
		"cancelled after its hold":              {"hold, cancel, pass 36m, time out", endedByCustomer},
		"cancelled after its hold was released": {"hold, cancel, release, time out", endedByCustomer},
		"timed out":                             {"pass 31m, time out", endedByTimeout},
		"timed out after its hold":              {"hold, pass 36m, time out", endedByTimeout},
		"timed out after it was released":       {"hold, pass 31m, release, time out", endedByTimeout},
		"timed out after an extension":          {"extend, pass 41m, time out", endedByTimeout},
	} {
		for operation := range operations {
			t.Run(state+"/"+operation, func(t *testing.T) {
				customer, product := s.customer(t), s.product(t, 5)
				id := s.place(t, customer, line(product, 2)).ID
				for step := range splitSteps(test.setup) {
					if err := s.step(t, step, customer, product, id); err != nil {
						t.Fatalf("setup: %s: %v", step, err)
					}
				}
				s.exec(t, `DELETE FROM outbox`) // as if the relay had copied the tasks of the setup
				before, status := s.trail(t, id), s.status(t, id)
				want := test.results[operation]
				if want == "" {
					want = "ok " + status
				}
				code := "ok"
				if err := s.step(t, operation, customer, product, id); err != nil {
					code = parttest.KindOf(err).Code
				}
				got := code + " " + s.status(t, id)
				if added := s.trail(t, id)[len(before):]; len(added) > 0 {
					got += ": " + strings.Join(added, ", ")
				}
				if owed := s.owed(t, id); owed != "" {
					got += " owes" + owed
				}
				if got != want {
					t.Errorf("%s returned %q, want %q", operation, got, want)
				}
				if want := int64(5); strings.HasPrefix(s.status(t, id), "cancelled") != (s.available(t, product) == want) {
					t.Errorf("the order is %s, and %d of %d are available", s.status(t, id), s.available(t, product), want)
				}
			})
		}
	}
	s.checkInvariants(t, time.Hour)
}

// The results of the operations on orders that have ended.
var (
	endedPaid       = map[string]string{"cancel": "order-paid paid", "extend": "order-paid paid"}
	endedByCustomer = map[string]string{"pay": "order-cancelled cancelled customer", "extend": "order-cancelled cancelled customer"}
	endedByTimeout  = map[string]string{
		"pay": "deadline-passed cancelled timeout", "cancel": "deadline-passed cancelled timeout", "extend": "deadline-passed cancelled timeout",
	}
)

// operations are the steps that are tested in each state.
var operations = steps{
	"pay": func(t *testing.T, s *shop, customer, _, id uuid.UUID) error {
		_, err := s.Pay(t.Context(), customer, id)
		return err
	},
	"cancel": func(t *testing.T, s *shop, customer, _, id uuid.UUID) error {
		_, err := s.Cancel(t.Context(), customer, id)
		return err
	},
	"extend": func(t *testing.T, s *shop, customer, _, id uuid.UUID) error {
		_, err := s.Extend(t.Context(), customer, id)
		return err
	},
	"time out": func(t *testing.T, s *shop, _, _, id uuid.UUID) error { s.cancelDue(t, id); return nil },
	"remind": func(t *testing.T, s *shop, _, _, id uuid.UUID) error {
		_, err := s.Remind(t.Context(), []delay.Task{{ID: id.String()}})
		return err
	},
	"close": func(t *testing.T, s *shop, _, product, _ uuid.UUID) error {
		_, err := s.CloseSale(t.Context(), product)
		return err
	},
}

// splitSteps returns the steps of a setup.
func splitSteps(setup string) iter.Seq[string] { return strings.SplitSeq(setup, ", ") }

// step does an operation, or another step of a setup.
func (s *shop) step(t *testing.T, step string, customer, product, id uuid.UUID) error {
	t.Helper()
	if operation, ok := operations[step]; ok {
		return operation(t, s, customer, product, id)
	}
	switch name, after, _ := strings.Cut(step, " "); name {
	case "hold":
		s.hold(t, id)
	case "release":
		s.release(t, id)
	case "pass":
		d, err := time.ParseDuration(after)
		if err != nil {
			return err
		}
		s.pass(t, id, d)
	default:
		if step == "pay held" { // strings.Cut has split it
			s.payHeld(t, id)
		} else if step != "" {
			return fmt.Errorf("unknown step %q", step)
		}
	}
	return nil
}

// status returns the status of an order and the reason of its cancellation.
func (s *shop) status(t testing.TB, id uuid.UUID) string {
	t.Helper()
	return testenv.Query[string](t, s.db, `SELECT concat_ws(' ', status, cancel_reason) FROM orders WHERE id = $1`, id)
}

// trail returns the events of an order, each with its actor.
func (s *shop) trail(t testing.TB, id uuid.UUID) []string {
	t.Helper()
	text := testenv.Query[string](t, s.db, `SELECT string_agg(type || ' ' || actor, ',' ORDER BY id) FROM order_events WHERE order_id = $1`, id)
	return strings.Split(text, ",")
}

// owed returns the kinds of the outbox rows of an order, each after a blank.
func (s *shop) owed(t testing.TB, id uuid.UUID) string {
	t.Helper()
	return testenv.Query[string](t, s.db, `SELECT coalesce(string_agg(' ' || kind, '' ORDER BY kind), '') FROM outbox WHERE task_id = $1`, id.String())
}

// outboxLeft returns the time until an outbox row is due, by the database's clock.
func (s *shop) outboxLeft(t testing.TB, kind string, id uuid.UUID) time.Duration {
	t.Helper()
	us := testenv.Query[int64](t, s.db, `SELECT (extract(epoch FROM due_at - clock_timestamp()) * 1000000)::bigint FROM outbox WHERE kind = $1 AND task_id = $2`,
		kind, id.String())
	return time.Duration(us) * time.Microsecond
}

// near reports whether a duration is at most want, and at most ten seconds less.
func near(got, want time.Duration) bool { return got <= want && got > want-10*time.Second }

// TestStatementSeesMovedOrder has each operation wait for the lock of an order that another session changes. The
// statement's snapshot has the old version of the row: it must decide by the new version, and must not violate a
// constraint with values of the old one.
func TestStatementSeesMovedOrder(t *testing.T) {
	t.Parallel()
	changes := map[string]string{
		"held":             `UPDATE orders SET hold_until = expires_at + interval '5 min' WHERE id = $1 AND hold_until IS NULL`,
		"released":         `UPDATE orders SET hold_until = NULL WHERE id = $1`,
		"being cancelled":  `UPDATE orders SET cancel_requested_at = now() WHERE id = $1 AND cancel_requested_at IS NULL AND now() < expires_at`,
		"made later":       `UPDATE orders SET expires_at = now() + interval '1 h', hold_until = CASE WHEN hold_until IS NOT NULL THEN now() + interval '2 h' END WHERE id = $1`,
		"brought forward":  `UPDATE orders SET expires_at = now() + interval '90 s', hold_until = CASE WHEN hold_until IS NOT NULL THEN now() + interval '95 s' END WHERE id = $1`,
		"paid":             `UPDATE orders SET status = 'paid', paid_at = expires_at - interval '1 min' WHERE id = $1 AND (cancel_requested_at IS NULL OR hold_until IS NOT NULL)`,
		"released, forced": `UPDATE orders SET hold_until = NULL, cancel_requested_at = created_at WHERE id = $1`,
	}
	s := newShop(t)
	for _, setup := range []string{"", "hold", "hold, cancel", "hold, cancel, release", "pass 31m", "hold, pass 31m", "extend, hold"} {
		for change, statement := range changes {
			for operation, do := range operations {
				if operation == "time out" || operation == "remind" {
					continue // they skip locked orders; TestTimeoutSeesMovedOrder tests them
				}
				t.Run(setup+"/"+change+"/"+operation, func(t *testing.T) {
					customer, product := s.customer(t), s.product(t, 1)
					id := s.place(t, customer, line(product, 1)).ID
					for step := range splitSteps(setup) {
						if err := s.step(t, step, customer, product, id); err != nil {
							t.Fatal(err)
						}
					}
					release := testenv.HoldLock(t, s.db, statement, id)
					done := make(chan error, 1)
					go func() { done <- do(t, s, customer, product, id) }()
					// An operation that does not concern the old version of the order does not wait.
					var err error
					ended := false
					testenv.Eventually(t, "an operation that ends or waits for a lock", func() bool {
						select {
						case err = <-done:
							ended = true
						default:
						}
						return ended || testenv.WaitsForLock(t, s.db)
					})
					release()
					if !ended {
						err = <-done
					}
					if kind := parttest.KindOf(err); strings.HasPrefix(kind.Code, "not a rejection") {
						t.Errorf("%s returns %v, want no error or a rejection", operation, err)
					}
					s.exec(t, `UPDATE products SET available = (SELECT supply - count(*) FROM orders WHERE id = $2 AND status <> 'cancelled') WHERE id = $1 AND available = 1`,
						product, id)
				})
			}
		}
	}
	if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM orders WHERE paid_at >= due_at OR cancelled_at < due_at`); n > 0 {
		t.Errorf("%d orders ended at a wrong time, want 0", n)
	}
}

// TestTimeoutSeesMovedOrder moves an order between the moment of the snapshot of the worker's statement and the moment
// when it locks the order.
func TestTimeoutSeesMovedOrder(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for name, test := range map[string]struct{ setup, change, status string }{
		"extended":                {"pass 31m", `UPDATE orders SET expires_at = now() + interval '1 h' WHERE id = $1`, "pending"},
		"held":                    {"pass 31m", `UPDATE orders SET hold_until = now() + interval '1 h' WHERE id = $1`, "pending"},
		"held, the hold is over":  {"pass 31m", `UPDATE orders SET hold_until = now() - interval '1 s' WHERE id = $1`, "cancelled timeout"},
		"released":                {"hold, pass 36m", `UPDATE orders SET hold_until = NULL WHERE id = $1`, "cancelled timeout"},
		"its customer cancels it": {"pass 31m", `UPDATE orders SET cancel_requested_at = created_at WHERE id = $1`, "cancelled customer"},
		"brought forward":         {"hold, pass 36m", `UPDATE orders SET expires_at = created_at + interval '1 s', hold_until = created_at + interval '2 s' WHERE id = $1`, "cancelled timeout"},
		"moved back":              {"pass 31m", `UPDATE orders SET expires_at = created_at + interval '1 s' WHERE id = $1`, "cancelled timeout"},
		"paid":                    {"pass 31m", `UPDATE orders SET status = 'paid', paid_at = created_at WHERE id = $1`, "paid"},
	} {
		t.Run(name, func(t *testing.T) {
			customer, product := s.customer(t), s.product(t, 1)
			id := s.place(t, customer, line(product, 1)).ID
			for step := range splitSteps(test.setup) {
				if err := s.step(t, step, customer, product, id); err != nil {
					t.Fatal(err)
				}
			}
			// The statement has its snapshot when it waits for the advisory lock, which the test adds to it.
			const lock = `pg_advisory_xact_lock(1)`
			const condition = `WHERE id = ANY ($1::uuid[]) AND CASE status`
			statement := strings.Replace(order.CancelDueSQL, condition, `WHERE (SELECT `+lock+`) IS NOT NULL AND `+strings.TrimPrefix(condition, "WHERE "), 1)
			if statement == order.CancelDueSQL {
				t.Fatalf("cancel_due.sql has no line %q", condition)
			}
			release := testenv.HoldLock(t, s.db, `SELECT `+lock)
			done := make(chan error, 1)
			go func() {
				_, err := s.db.ExecContext(t.Context(), statement, []uuid.UUID{id}, "worker")
				done <- err
			}()
			testenv.AwaitLockWait(t, s.db)
			s.exec(t, test.change, id)
			release()
			if err := <-done; err != nil {
				t.Errorf("the statement fails: %v", err)
			}
			if got := s.status(t, id); got != test.status {
				t.Errorf("the order is %s, want %s", got, test.status)
			}
		})
	}
}

// TestHeldOrderIsNotCancelledBeforeItsHoldEnds delivers the task of a held order at the deadline, and then at the end of
// the hold.
func TestHeldOrderIsNotCancelledBeforeItsHoldEnds(t *testing.T) {
	t.Parallel()
	for name, cancelled := range map[string]bool{"timeout": false, "customer": true} {
		t.Run(name, func(t *testing.T) {
			s := newShop(t)
			customer, product := s.customer(t), s.product(t, 1)
			id := s.place(t, customer, line(product, 1)).ID
			s.hold(t, id)
			if cancelled {
				o, err := s.Cancel(t.Context(), customer, id)
				if err != nil || o.Status != order.Pending || o.CancelRequestedAt == nil || !o.DueAt.Equal(*o.HoldUntil) {
					t.Fatalf("Cancel returns %+v, %v; want a pending order, due at the end of its hold", o, err)
				}
			}
			s.pass(t, id, timeout)
			if left, ok := s.cancelDue(t, id)[0].Retry(); !ok || !near(left, holdTime) {
				t.Errorf("at the deadline the task is due again in %v (%v), want about %v", left, ok, holdTime)
			}
			if page, _, err := s.Pending(t.Context(), "", time.Minute, 10); len(page) > 0 || err != nil {
				t.Errorf("%d orders are due within a minute, %v; want none", len(page), err)
			}
			s.pass(t, id, holdTime)
			if n, err := s.timeOut(t.Context(), 0, 10); n != 1 || err != nil {
				t.Errorf("at the end of the hold %d orders time out, %v; want 1", n, err)
			}
			o, err := s.Get(t.Context(), customer, id)
			if err != nil || string(o.CancelReason) != name || o.CancelledAt.Before(*o.HoldUntil) || !o.DueAt.Equal(*o.HoldUntil) {
				t.Errorf("the order is %+v, %v; want it cancelled (%s) at the end of its hold", o, err, name)
			}
			s.checkInvariants(t, 0)
			if late, err := s.store.Lateness(t.Context()); err != nil || late.Reconciler.Count != map[bool]int64{false: 1}[cancelled] ||
				late.Reconciler.Max > 10 {
				t.Errorf("lateness is %+v, %v; want that of timeouts only, from the end of the hold", late, err)
			}
		})
	}
}

// TestCancelOfHeldOrderOwesItsTask repeats the request to cancel a held order.
func TestCancelOfHeldOrderOwesItsTask(t *testing.T) {
	s := newShop(t)
	customer, product := s.customer(t), s.product(t, 1)
	o := s.place(t, customer, line(product, 1))
	s.hold(t, o.ID)
	// The row that the payment owed, due later: the request pulls it forward.
	s.exec(t, `INSERT INTO outbox (kind, task_id, due_at) VALUES ($1, $2, now() + interval '1 hour')`, heldKind, o.ID.String())
	first, err := s.Cancel(t.Context(), customer, o.ID)
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.Cancel(t.Context(), customer, o.ID)
	if err != nil || !again.CancelRequestedAt.Equal(*first.CancelRequestedAt) {
		t.Errorf("the second Cancel returns %+v, %v; want the time of the first request, %v", again, err, first.CancelRequestedAt)
	}
	if left := s.outboxLeft(t, heldKind, o.ID); left > 0 {
		t.Errorf("the task is due in %v, want now", left)
	}
	if tasks := s.settled.All(); len(tasks) != 1 || tasks[0].ID != o.ID.String() || tasks[0].Left() > 0 {
		t.Errorf("%+v are published, want the task of order %s, due now", tasks, o.ID)
	}
	if n := s.notified.Of(o.CustomerID, o.ID); n != 2 {
		t.Errorf("%d notifications, want 2: one for the placement, one for the request", n)
	}
	if got := s.trail(t, o.ID); len(got) != 3 {
		t.Errorf("the trail is %q, want one cancel_requested", got)
	}
}

// TestExtensionLongerThanTheHold extends a held order by more than the time from its deadline to the end of its hold.
func TestExtensionLongerThanTheHold(t *testing.T) {
	s := newShop(t)
	customer, product := s.customer(t), s.product(t, 1)
	id := s.place(t, customer, line(product, 1)).ID
	s.hold(t, id)
	before, err := s.Get(t.Context(), customer, id)
	if err != nil || before.ExtensionSeconds != extension.Seconds() {
		t.Fatalf("the order is %+v, %v; want an extension of %v", before, err, extension)
	}
	after, err := s.Extend(t.Context(), customer, id)
	if err != nil || !after.ExpiresAt.Equal(before.ExpiresAt.Add(extension)) || !after.HoldUntil.Equal(before.HoldUntil.Add(extension)) ||
		!after.DueAt.Equal(*after.HoldUntil) || after.ExtendedAt == nil || after.ExtensionSeconds != 0 {
		t.Fatalf("Extend returns %+v, %v; want the deadline and the hold %v later", after, err, extension)
	}
	s.pass(t, id, timeout+holdTime) // the tasks of the old times come early
	if left, ok := s.cancelDue(t, id)[0].Retry(); !ok || !near(left, extension) {
		t.Errorf("at the end of the old hold the task is due again in %v (%v), want about %v", left, ok, extension)
	}
	if _, err := s.Pay(t.Context(), customer, id); parttest.KindOf(err) != order.CheckoutOpen {
		t.Errorf("Pay returns %v, want code %s", err, order.CheckoutOpen.Code)
	}
	s.release(t, id)
	if left, ok := s.cancelDue(t, id)[0].Retry(); !ok || !near(left, extension-holdTime) {
		t.Errorf("after the release the task is due again in %v (%v), want about %v", left, ok, extension-holdTime)
	}
	if _, err := s.Pay(t.Context(), customer, id); err != nil {
		t.Errorf("Pay after the release, before the new deadline: %v", err)
	}
	s.checkInvariants(t, 0)
}

// TestNoExtension has a shop that extends no deadlines.
func TestNoExtension(t *testing.T) {
	s := newShop(t, func(c *order.Config) { c.Extension = 0 })
	customer, product := s.customer(t), s.product(t, 2)
	o := s.place(t, customer, line(product, 1))
	if _, err := s.Extend(t.Context(), customer, o.ID); parttest.KindOf(err) != order.NotExtendable || o.ExtensionSeconds != 0 {
		t.Errorf("Extend of an order with extension_seconds %v returns %v, want code %s", o.ExtensionSeconds, err, order.NotExtendable.Code)
	}
	if _, err := s.Pay(t.Context(), customer, o.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Extend(t.Context(), customer, o.ID); parttest.KindOf(err) != order.AlreadyPaid {
		t.Errorf("Extend of a paid order returns %v, want code %s", err, order.AlreadyPaid.Code)
	}
}

// TestWithoutHeldKind cancels a held order in a shop without the package that holds orders. No task is owed, and the
// order is cancelled when its hold ends.
func TestWithoutHeldKind(t *testing.T) {
	s := newShop(t)
	s.HoldBy("", nil)
	customer, product := s.customer(t), s.product(t, 1)
	id := s.place(t, customer, line(product, 1)).ID
	s.hold(t, id)
	if _, err := s.Cancel(t.Context(), customer, id); err != nil {
		t.Fatal(err)
	}
	if _, err := s.CloseSale(t.Context(), product); err != nil {
		t.Fatal(err)
	}
	if owed := s.owed(t, id); owed != " "+order.CancelKind {
		t.Errorf("the outbox has%s, want only %s", owed, order.CancelKind)
	}
	s.pass(t, id, time.Minute+holdTime)
	if n, err := s.timeOut(context.WithoutCancel(t.Context()), 0, 10); n != 1 || err != nil {
		t.Errorf("%d orders time out, %v; want 1", n, err)
	}
	s.checkInvariants(t, 0)
}
