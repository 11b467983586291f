package ordertest

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// HoldTime is the time from the deadline of an order that [Shop.Hold] holds to the end of the hold.
const HoldTime = 5 * time.Minute

// The statements that change an order $1.
const (
	// PassSQL moves the times of an order back, as if the time $2 in microseconds had passed.
	PassSQL = `
	UPDATE orders SET created_at = created_at - passed, expires_at = expires_at - passed, hold_until = hold_until - passed
	FROM (SELECT $2::bigint * interval '1 us' AS passed) AS time WHERE id = $1`

	// ExpireSQL moves the times of an order back by an hour. A new order is then overdue by half an hour.
	ExpireSQL = `
	UPDATE orders SET created_at = created_at - interval '1 hour', expires_at = expires_at - interval '1 hour',
	       hold_until = hold_until - interval '1 hour'
	WHERE id = $1`

	// HoldSQL holds a pending order, as the package that holds orders does.
	HoldSQL = `
	WITH held AS (
		UPDATE orders SET hold_until = expires_at + interval '5 min'
		WHERE id = $1 AND status = 'pending' AND hold_until IS NULL AND expires_at > clock_timestamp()
		RETURNING id
	)
	INSERT INTO order_events (order_id, type, actor, at) SELECT id, 'held', 'customer', clock_timestamp() FROM held
		RETURNING id`

	// ReleaseSQL ends the hold of a pending order, and owes the task that cancels it, because its due time becomes
	// earlier.
	ReleaseSQL = `
	WITH released AS (
		UPDATE orders SET hold_until = NULL WHERE id = $1 AND status = 'pending' AND hold_until IS NOT NULL RETURNING id
	), owed AS (
		INSERT INTO outbox (kind, task_id, due_at) SELECT 'order.cancel', id::text, clock_timestamp() FROM released
		ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
	)
	INSERT INTO order_events (order_id, type, actor, at) SELECT id, 'released', 'provider', clock_timestamp()
		FROM released`

	// payHeldSQL pays a held order before its hold ends.
	payHeldSQL = `
	UPDATE orders SET status = 'paid', paid_at = clock_timestamp(), ended_by = 'provider'
	WHERE id = $1 AND status = 'pending' AND hold_until > clock_timestamp()`
)

// Pass lets time pass for an order.
func (s *Shop) Pass(t testing.TB, id uuid.UUID, d time.Duration) {
	t.Helper()
	s.Exec(t, PassSQL, id, d.Microseconds())
}

// Expire moves the deadline of a new order into the past.
func (s *Shop) Expire(t testing.TB, id uuid.UUID) { t.Helper(); s.Exec(t, ExpireSQL, id) }

// Hold holds a pending order.
func (s *Shop) Hold(t testing.TB, id uuid.UUID) { t.Helper(); s.Exec(t, HoldSQL, id) }

// Release ends the hold of a pending order.
func (s *Shop) Release(t testing.TB, id uuid.UUID) { t.Helper(); s.Exec(t, ReleaseSQL, id) }

// PayHeld pays a held order before its hold ends.
func (s *Shop) PayHeld(t testing.TB, id uuid.UUID) { t.Helper(); s.Exec(t, payHeldSQL, id) }

// Move moves the deadline of an order to a time from now, as an operator does.
func (s *Shop) Move(t testing.TB, id uuid.UUID, left time.Duration) error {
	t.Helper()
	now := testenv.Query[time.Time](t, s.DB, `SELECT clock_timestamp()`)
	_, err := s.Reschedule(t.Context(), id, now.Add(left), "a test")
	return err
}

// Operation does something to an order, for instance pays it. It returns the error that the caller of the service gets.
type Operation func(t testing.TB, customer, id uuid.UUID) error

// Operations returns the operations of package order, by name.
func (s *Shop) Operations() map[string]Operation {
	return map[string]Operation{
		"pay": func(t testing.TB, customer, id uuid.UUID) error {
			_, err := s.Pay(t.Context(), customer, id)
			return err
		},
		"cancel": func(t testing.TB, customer, id uuid.UUID) error {
			_, err := s.Cancel(t.Context(), customer, id)
			return err
		},
		"extend": func(t testing.TB, customer, id uuid.UUID) error {
			_, err := s.Extend(t.Context(), customer, id)
			return err
		},
		"move earlier": func(t testing.TB, _, id uuid.UUID) error { return s.Move(t, id, time.Minute) },
		"move later":   func(t testing.TB, _, id uuid.UUID) error { return s.Move(t, id, 24*time.Hour) },
		"time out":     func(t testing.TB, _, id uuid.UUID) error { s.Deliver(t, id); return nil },
	}
}

// Do does the steps, separated by commas, to an order: operations of package order, and those of others.
func (s *Shop) Do(t testing.TB, steps string, customer, id uuid.UUID) {
	t.Helper()
	operations := s.Operations()
	for step := range strings.SplitSeq(steps, ", ") {
		after, passes := strings.CutPrefix(step, "pass ")
		switch operation, ok := operations[step]; {
		case ok:
			if err := operation(t, customer, id); err != nil {
				t.Fatalf("%s: %v", step, err)
			}
		case passes:
			s.Pass(t, id, parseDuration(t, after))
		case step == "hold":
			s.Hold(t, id)
		case step == "release":
			s.Release(t, id)
		case step == "pay held":
			s.PayHeld(t, id)
		case step != "":
			t.Fatalf("unknown step %q", step)
		}
	}
}

func parseDuration(t testing.TB, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	testenv.Must(t, err)
	return d
}

// States are the steps, separated by commas, that lead to each state of an order, by the name of the state.
var States = map[string]string{
	"pending":                               "",
	"near the deadline":                     "pass 26m",
	"extended":                              "extend",
	"extended beyond its first deadline":    "extend, pass 31m",
	"extended twice":                        "extend, extend",
	"moved earlier":                         "move earlier",
	"held":                                  "hold",
	"held near the deadline":                "hold, pass 26m",
	"held and released":                     "hold, release",
	"held and extended":                     "hold, extend",
	"moved later":                           "move later, pass 31m",
	"held and moved later":                  "hold, move later, pass 31m",
	"held past the deadline":                "hold, pass 31m",
	"hold ended":                            "hold, pass 36m",
	"released past the deadline":            "hold, pass 31m, release",
	"overdue":                               "pass 31m",
	"paid":                                  "pay",
	"paid near the deadline":                "pass 26m, pay",
	"paid while held":                       "hold, pay held",
	"paid after the deadline":               "hold, pass 31m, pay held",
	"paid, held after an extension":         "extend, hold, pass 41m, pay held",
	"cancelled":                             "cancel",
	"cancelled after its hold was released": "hold, release, cancel",
	"timed out":                             "pass 31m, time out",
	"timed out after its hold":              "hold, pass 36m, time out",
	"timed out after it was released":       "hold, pass 31m, release, time out",
	"timed out after an extension":          "extend, pass 41m, time out",
}

// CheckOperation does an operation on an order in each state. Its results are written as the code of the error or
// "ok", the status of the order after the operation, the events that the operation added, and the kinds of task that
// it owes. A state without a result has the result "ok", and no change.
func (s *Shop) CheckOperation(t *testing.T, name string, do Operation, results map[string]string) {
	for state := range results {
		if _, ok := States[state]; !ok {
			t.Errorf("there is a result of %s for the state %q, which States lacks", name, state)
		}
	}
	for state, steps := range States {
		t.Run(state+"/"+name, func(t *testing.T) {
			customer, product := s.Customer(t), s.Product(t, 5)
			id := s.MustPlace(t, customer, Line(product, 2)).ID
			s.Do(t, steps, customer, id)
			s.Exec(t, `DELETE FROM outbox`) // as if the relay had copied the tasks of the setup
			want := results[state]
			if want == "" {
				want = "ok " + s.Status(t, id)
			}
			if got := s.result(t, do, customer, id); got != want {
				t.Errorf("%s returned %q, want %q", name, got, want)
			}
			if want := int64(5); strings.HasPrefix(s.Status(t, id), "cancelled") != (s.Available(t, product) == want) {
				t.Errorf("the order is %s, and %d of %d are available", s.Status(t, id), s.Available(t, product), want)
			}
		})
	}
	s.CheckInvariants(t, time.Hour)
}

// result does an operation, and returns its result as [Shop.CheckOperation] writes it.
func (s *Shop) result(t testing.TB, do Operation, customer, id uuid.UUID) string {
	t.Helper()
	before := len(s.Trail(t, id))
	code := "ok"
	if err := do(t, customer, id); err != nil {
		code = parttest.ClassOf(err).Code
	}
	result := code + " " + s.Status(t, id)
	if added := s.Trail(t, id)[before:]; len(added) > 0 {
		result += ": " + strings.Join(added, ", ")
	}
	if owed := s.Owed(t, id); owed != "" {
		result += " owes" + owed
	}
	return result
}

// CheckMovedOrder has an operation wait for the lock of an order that another session changes. The statement's
// snapshot has the old version of the row: it must decide by the new version, and must not violate a constraint with
// values of the old one.
func (s *Shop) CheckMovedOrder(t *testing.T, name string, do Operation) {
	changes := map[string]string{
		"held": `UPDATE orders SET hold_until = expires_at + interval '5 min' WHERE id = $1
			AND hold_until IS NULL`,
		"released": `UPDATE orders SET hold_until = NULL WHERE id = $1`,
		"moved later": `UPDATE orders
			SET expires_at = now() + interval '1 h', hold_until = CASE WHEN hold_until IS NOT NULL
			THEN now() + interval '2 h' END WHERE id = $1`,
		"moved earlier": `UPDATE orders
			SET expires_at = now() + interval '90 s', hold_until = CASE WHEN hold_until IS NOT NULL
			THEN now() + interval '95 s' END WHERE id = $1`,
		"paid": `UPDATE orders
			SET status = 'paid', ended_by = 'customer', paid_at = expires_at - interval '1 min' WHERE id = $1`,
	}
	for _, steps := range []string{"", "hold", "pass 31m", "hold, pass 31m", "extend, hold"} {
		for change, statement := range changes {
			t.Run(steps+"/"+change+"/"+name, func(t *testing.T) {
				customer, product := s.Customer(t), s.Product(t, 1)
				id := s.MustPlace(t, customer, Line(product, 1)).ID
				s.Do(t, steps, customer, id)
				release := testenv.HoldLock(t, s.DB, statement, id)
				done := make(chan error, 1)
				go func() { done <- do(t, customer, id) }()
				// An operation that does not concern the old version of the order does not wait.
				var err error
				ended := false
				testenv.Eventually(t, "an operation that ends or waits for a lock", func() bool {
					select {
					case err = <-done:
						ended = true
					default:
					}
					return ended || testenv.WaitsForLock(t, s.DB)
				})
				release()
				if !ended {
					err = <-done
				}
				if class := parttest.ClassOf(err); strings.HasPrefix(class.Code, "not a rejection") {
					t.Errorf("%s returns %v, want no error or a rejection", name, err)
				}
				s.Exec(t,
					`UPDATE products SET available = (SELECT supply - count(*) FROM orders WHERE id = $2
						AND status <> 'cancelled') WHERE id = $1 AND available = 1`,
					product, id)
			})
		}
	}
	if n := testenv.Query[int](t, s.DB,
		`SELECT count(*) FROM orders WHERE paid_at >= due_at OR (cancelled_at < due_at) <> (cancel_reason = 'customer')`); n > 0 {
		t.Errorf("%d orders ended at a wrong time, want 0", n)
	}
}
