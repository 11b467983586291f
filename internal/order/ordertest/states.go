package ordertest

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/postgres"
	"example.com/shop/internal/testenv"
)

// HoldTime is the time from the deadline of an order that [Shop.Hold] holds to the end of the hold.
const HoldTime = 5 * time.Minute

// ExpireSQL moves the times of an order $1 back by an hour. A new order is then overdue by half an hour.
const ExpireSQL = `
	UPDATE orders SET created_at = created_at - interval '1 hour', expires_at = expires_at - interval '1 hour',
	       hold_until = hold_until - interval '1 hour'
	WHERE id = $1`

// Pass lets time pass for an order: it moves the order's times back.
func (s *Shop) Pass(t testing.TB, id uuid.UUID, d time.Duration) {
	t.Helper()
	s.Exec(t, `
		UPDATE orders SET created_at = created_at - passed, expires_at = expires_at - passed,
		       hold_until = hold_until - passed
		FROM (SELECT $2::bigint * interval '1 us' AS passed) AS time WHERE id = $1`, id, d.Microseconds())
}

// Expire moves the deadline of a new order into the past.
func (s *Shop) Expire(t testing.TB, id uuid.UUID) { t.Helper(); s.Exec(t, ExpireSQL, id) }

// Change changes an order as a package does that has transactions of its own.
func (s *Shop) Change(t testing.TB, id uuid.UUID, change func(*order.Order) error) error {
	t.Helper()
	var c order.Change
	err := postgres.Transact(t.Context(), s.Gorm, func(tx *postgres.Tx) (err error) {
		c, err = s.Update(t.Context(), tx, id, change)
		return err
	})
	if err == nil {
		s.Announce(t.Context(), c)
	}
	return err
}

// Hold holds a pending order.
func (s *Shop) Hold(t testing.TB, id uuid.UUID) {
	t.Helper()
	testenv.Must(t, s.Change(t, id, func(o *order.Order) error { return o.Hold(o.ExpiresAt.Add(HoldTime)) }))
}

// Release ends the hold of a pending order.
func (s *Shop) Release(t testing.TB, id uuid.UUID) {
	t.Helper()
	testenv.Must(t, s.Change(t, id, func(o *order.Order) error { o.Release(order.Provider); return nil }))
}

// PayHeld pays a held order before its hold ends.
func (s *Shop) PayHeld(t testing.TB, id uuid.UUID) {
	t.Helper()
	testenv.Must(t, s.Change(t, id, func(o *order.Order) error { o.PayHeld(); return nil }))
}

// Move moves the deadline of an order to a time from now, as an operator does.
func (s *Shop) Move(t testing.TB, id uuid.UUID, left time.Duration) error {
	t.Helper()
	now := testenv.Query[time.Time](t, s.DB, `SELECT clock_timestamp()`)
	_, err := s.Reschedule(t.Context(), id, now.Add(left), "a test")
	return err
}

// Do does the steps, separated by commas, to an order: those of its customer, of an operator, of the worker and of a
// package that holds orders, and "pass 5m", which lets time pass.
func (s *Shop) Do(t testing.TB, steps string, customer, id uuid.UUID) {
	t.Helper()
	for step := range strings.SplitSeq(steps, ", ") {
		testenv.Must(t, s.do(t, step, customer, id))
	}
}

func (s *Shop) do(t testing.TB, step string, customer, id uuid.UUID) (err error) {
	t.Helper()
	switch step {
	case "":
	case "pay":
		_, err = s.Pay(t.Context(), customer, id)
	case "cancel":
		_, err = s.Cancel(t.Context(), customer, id)
	case "extend":
		_, err = s.Extend(t.Context(), customer, id)
	case "move earlier":
		err = s.Move(t, id, time.Minute)
	case "move later":
		err = s.Move(t, id, 24*time.Hour)
	case "time out":
		s.Deliver(t, id)
	case "hold":
		s.Hold(t, id)
	case "release":
		s.Release(t, id)
	case "pay held":
		s.PayHeld(t, id)
	default:
		var passed time.Duration
		passed, err = time.ParseDuration(strings.TrimPrefix(step, "pass "))
		s.Pass(t, id, passed)
	}
	return err
}
