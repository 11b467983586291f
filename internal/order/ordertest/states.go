package ordertest

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/testenv"
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

// Step does something to an order, for instance pays it. It returns the error that the caller of the service gets.
type Step func(t testing.TB, customer, id uuid.UUID) error

// Steps returns the steps of package order, by name.
func (s *Shop) Steps() map[string]Step {
	return map[string]Step{
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

// Do does the steps, separated by commas, to an order: steps of package order, and those of others.
func (s *Shop) Do(t testing.TB, steps string, customer, id uuid.UUID) {
	t.Helper()
	known := s.Steps()
	for step := range strings.SplitSeq(steps, ", ") {
		after, passes := strings.CutPrefix(step, "pass ")
		switch do, ok := known[step]; {
		case ok:
			if err := do(t, customer, id); err != nil {
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
