package order_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/keyset"
	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// TestOperationsInEachState does each operation on an order in each state. See [ordertest.Shop.CheckOperation] for how
// the results are written.
func TestOperationsInEachState(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	results := map[string]map[string]string{ // by state and operation; a missing operation is "ok" and changes nothing
		"pending":                            free,
		"near the deadline":                  free,
		"extended":                           free,
		"extended beyond its first deadline": free,
		"moved earlier":                      but(free, "move earlier", "ok pending: rescheduled operator"), // by milliseconds to a later time
		"moved later":                        free,
		"held and released":                  free,
		"extended twice":                     but(free, "extend", "not-extendable pending"),
		"held":                               held,
		"held near the deadline":             held,
		"held and extended":                  held,
		"held and moved later":               held,
		"held past the deadline": {
			"pay": passed, "extend": passed, "move earlier": passed, "move later": passed,
			"cancel": "checkout-open pending",
		},
		"hold ended":                            due,
		"released past the deadline":            due,
		"overdue":                               due,
		"paid":                                  endedPaid,
		"paid near the deadline":                endedPaid,
		"paid while held":                       endedPaid,
		"paid after the deadline":               endedPaid,
		"paid, held after an extension":         endedPaid,
		"cancelled":                             endedByCustomer,
		"cancelled after its hold was released": endedByCustomer,
		"timed out":                             endedByTimeout,
		"timed out after its hold":              endedByTimeout,
		"timed out after it was released":       endedByTimeout,
		"timed out after an extension":          endedByTimeout,
	}
	for name, operation := range s.Operations() {
		ofOperation := map[string]string{}
		for state, byOperation := range results {
			ofOperation[state] = byOperation[name]
		}
		s.CheckOperation(t, name, operation, ofOperation)
	}
}

// The results of the operations, as [ordertest.Shop.CheckOperation] writes them, on orders that
var (
	// are pending before their deadline, and not held
	free = map[string]string{
		"pay":          "ok paid: paid customer",
		"cancel":       cancelled,
		"extend":       "ok pending: rescheduled customer",
		"move earlier": "ok pending: rescheduled operator owes order.cancel",
		"move later":   "ok pending: rescheduled operator",
	}
	// are held before their deadline
	held = map[string]string{
		"pay":          "checkout-open pending",
		"cancel":       "checkout-open pending",
		"extend":       "ok pending: rescheduled customer",
		"move earlier": "checkout-open pending",
		"move later":   "ok pending: rescheduled operator",
	}
	// are due because their deadline has passed
	due = map[string]string{
		"pay": passed, "cancel": passed, "extend": passed, "move earlier": passed, "move later": passed,
		"time out": "ok cancelled timeout: cancelled worker",
	}
	endedPaid = map[string]string{
		"cancel": "order-paid paid", "extend": "order-paid paid", "move earlier": "order-paid paid", "move later": "order-paid paid",
	}
	endedByCustomer = map[string]string{
		"pay": cancelledBefore, "extend": cancelledBefore, "move earlier": cancelledBefore, "move later": cancelledBefore,
	}
	endedByTimeout = map[string]string{
		"pay": timedOut, "cancel": timedOut, "extend": timedOut, "move earlier": timedOut, "move later": timedOut,
	}
)

const (
	passed          = "deadline-passed pending"
	timedOut        = "deadline-passed cancelled timeout"
	cancelled       = "ok cancelled customer: cancelled customer"
	cancelledBefore = "order-cancelled cancelled customer"
)

// but returns results with other results of some operations: pairs of an operation and its result.
func but(results map[string]string, pairs ...string) map[string]string {
	results = maps.Clone(results)
	for pair := range slices.Chunk(pairs, 2) {
		results[pair[0]] = pair[1]
	}
	return results
}

// TestStatementSeesMovedOrder has each operation wait for the lock of an order that another session changes.
func TestStatementSeesMovedOrder(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for name, operation := range s.Operations() {
		if name != "time out" { // it skips locked orders; TestTimeoutSeesMovedOrder tests it
			s.CheckMovedOrder(t, name, operation)
		}
	}
}

// TestTimeoutSeesMovedOrder moves an order between the moment of the snapshot of the worker's statement and the moment
// when it locks the order.
func TestTimeoutSeesMovedOrder(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	for name, test := range map[string]struct{ setup, change, status string }{
		"extended": {"pass 31m", `UPDATE orders SET expires_at = now() + interval '1 h' WHERE id = $1`,
			"pending"},
		"held": {"pass 31m", `UPDATE orders SET hold_until = now() + interval '1 h' WHERE id = $1`,
			"pending"},
		"held, the hold is over": {"pass 31m", `UPDATE orders SET hold_until = now() - interval '1 s' WHERE id = $1`,
			"cancelled timeout"},
		"released": {"hold, pass 36m", `UPDATE orders SET hold_until = NULL WHERE id = $1`,
			"cancelled timeout"},
		"moved earlier": {"hold, pass 36m",
			`UPDATE orders SET expires_at = created_at + interval '1 s', hold_until = created_at + interval '2 s'
				WHERE id = $1`, "cancelled timeout"},
		"moved back": {"pass 31m",
			`UPDATE orders SET expires_at = created_at + interval '1 s' WHERE id = $1`, "cancelled timeout"},
		"paid": {"pass 31m",
			`UPDATE orders SET status = 'paid', paid_at = created_at, ended_by = 'customer' WHERE id = $1`, "paid"},
	} {
		t.Run(name, func(t *testing.T) {
			customer, product := s.Customer(t), s.Product(t, 1)
			id := s.place(t, customer, line(product, 1)).ID
			s.Do(t, test.setup, customer, id)
			// The statement has its snapshot when it waits for the advisory lock, which the test adds to it.
			const lock = `pg_advisory_xact_lock(1)`
			const condition = `WHERE id = ANY ($1::uuid[]) AND CASE status`
			statement := strings.Replace(order.CancelDueSQL, condition,
				`WHERE (SELECT `+lock+`) IS NOT NULL AND `+strings.TrimPrefix(condition, "WHERE "), 1)
			if statement == order.CancelDueSQL {
				t.Fatalf("cancel_due.sql has no line %q", condition)
			}
			release := testenv.HoldLock(t, s.DB, `SELECT `+lock)
			done := make(chan error, 1)
			go func() {
				_, err := s.DB.ExecContext(t.Context(), statement, []uuid.UUID{id}, "worker")
				done <- err
			}()
			testenv.AwaitLockWait(t, s.DB)
			s.Exec(t, test.change, id)
			release()
			if err := <-done; err != nil {
				t.Errorf("the statement fails: %v", err)
			}
			if got := s.Status(t, id); got != test.status {
				t.Errorf("the order is %s, want %s", got, test.status)
			}
		})
	}
}

// TestHeldOrderIsNotCancelledBeforeItsHoldEnds delivers the task of a held order at the deadline, and then at the end
// of the hold.
func TestHeldOrderIsNotCancelledBeforeItsHoldEnds(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer, product := s.Customer(t), s.Product(t, 1)
	id := s.place(t, customer, line(product, 1)).ID
	s.Hold(t, id)
	s.Pass(t, id, timeout)
	if left, ok := s.Deliver(t, id)[0].Retry(); !ok || !ordertest.Near(left, holdTime) {
		t.Errorf("at the deadline the task is due again in %v (%v), want about %v", left, ok, holdTime)
	}
	if page, _, err := s.Pending(t.Context(), keyset.Cursor{}, time.Minute, 10); len(page) > 0 || err != nil {
		t.Errorf("%d orders are due within a minute, %v; want none", len(page), err)
	}
	s.Pass(t, id, holdTime)
	if n, err := s.timeOut(t.Context(), 0, 10); n != 1 || err != nil {
		t.Errorf("at the end of the hold %d orders time out, %v; want 1", n, err)
	}
	o, err := s.Get(t.Context(), customer, id)
	if err != nil || o.CancelReason != order.ByTimeout || o.CancelledAt.Before(*o.HoldUntil) || !o.DueAt.Equal(*o.HoldUntil) {
		t.Errorf("the order is %+v, %v; want it timed out at the end of its hold", o, err)
	}
	s.CheckInvariants(t, 0)
	if late := s.lateness(t).Reconciler; late.Count != 1 || late.Max > 10 {
		t.Errorf("lateness is %+v, want that of one timeout, from the end of the hold", late)
	}
}

// TestExtensionLongerThanTheHold extends a held order by more than the time from its deadline to the end of its hold.
func TestExtensionLongerThanTheHold(t *testing.T) {
	s := newShop(t)
	customer, product := s.Customer(t), s.Product(t, 1)
	id := s.place(t, customer, line(product, 1)).ID
	s.Hold(t, id)
	before, err := s.Get(t.Context(), customer, id)
	if err != nil || before.ExtensionSeconds != extension.Seconds() {
		t.Fatalf("the order is %+v, %v; want an extension of %v", before, err, extension)
	}
	after, err := s.Extend(t.Context(), customer, id)
	if err != nil || !after.ExpiresAt.Equal(before.ExpiresAt.Add(extension)) ||
		!after.HoldUntil.Equal(before.HoldUntil.Add(extension)) ||
		!after.DueAt.Equal(*after.HoldUntil) || *after.ExtensionsLeft != ordertest.MaxExtensions-1 ||
		after.ExtensionSeconds != extension.Seconds() {
		t.Fatalf("Extend returns %+v, %v; want the deadline and the hold %v later", after, err, extension)
	}
	s.Pass(t, id, timeout+holdTime) // the tasks of the old times come early
	if left, ok := s.Deliver(t, id)[0].Retry(); !ok || !ordertest.Near(left, extension) {
		t.Errorf("at the end of the old hold the task is due again in %v (%v), want about %v", left, ok, extension)
	}
	if _, err := s.Pay(t.Context(), customer, id); parttest.ClassOf(err) != order.CheckoutOpen {
		t.Errorf("Pay returns %v, want code %s", err, order.CheckoutOpen.Code)
	}
	s.Release(t, id)
	if left, ok := s.Deliver(t, id)[0].Retry(); !ok || !ordertest.Near(left, extension-holdTime) {
		t.Errorf("after the release the task is due again in %v (%v), want about %v", left, ok, extension-holdTime)
	}
	if _, err := s.Pay(t.Context(), customer, id); err != nil {
		t.Errorf("Pay after the release, before the new deadline: %v", err)
	}
	s.CheckInvariants(t, 0)
}

// TestNoExtension has a shop that extends no deadlines.
func TestNoExtension(t *testing.T) {
	s := newShop(t, func(c *order.Config) { c.OrderExtension = 0 })
	customer, product := s.Customer(t), s.Product(t, 2)
	o := s.place(t, customer, line(product, 1))
	if _, err := s.Extend(t.Context(), customer, o.ID); parttest.ClassOf(err) != order.NotExtendable ||
		o.ExtensionSeconds != 0 {
		t.Errorf("Extend of an order with extension_seconds %v returns %v, want code %s", o.ExtensionSeconds, err,
			order.NotExtendable.Code)
	}
	if _, err := s.Pay(t.Context(), customer, o.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Extend(t.Context(), customer, o.ID); parttest.ClassOf(err) != order.AlreadyPaid {
		t.Errorf("Extend of a paid order returns %v, want code %s", err, order.AlreadyPaid.Code)
	}
}

// TestWithoutTasks uses a store of a service without Redis. It writes no outbox rows.
func TestWithoutTasks(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.Store.WithoutTasks()
	customer, product := s.Customer(t), s.Product(t, 10)
	o := s.place(t, customer, line(product, 1))
	testenv.Must(t, s.Move(t, o.ID, time.Minute))
	if n := testenv.Query[int](t, s.DB, `SELECT count(*) FROM outbox`); n != 0 {
		t.Errorf("the outbox has %d messages, want none", n)
	}
}
