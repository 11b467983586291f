package order_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/testenv"
)

func TestCancelDueReturnsAnOutcomeForEachTask(t *testing.T) {
	s := newShop(t)
	customer, a, b := s.Customer(t), s.Product(t, 10), s.Product(t, 10)
	due, alsoDue := s.MustPlace(t, customer, line(b, 1), line(a, 2)).ID, s.MustPlace(t, customer, line(a, 3)).ID
	place := func() uuid.UUID { return s.MustPlace(t, customer, line(b, 1)).ID }
	paid, locked, early := place(), place(), place()
	s.Do(t, "pay", customer, paid)
	for _, id := range []uuid.UUID{due, alsoDue, locked} {
		s.Expire(t, id)
	}
	testenv.HoldLock(t, s.DB, `SELECT FROM orders WHERE id = $1 FOR UPDATE`, locked)

	tasks := []delay.Task{
		{ID: due.String()}, {ID: "no uuid"}, {ID: paid.String()}, {ID: locked.String()}, {ID: early.String()},
		{ID: uuid.NewString()}, {ID: strings.ToUpper(paid.String())}, {ID: alsoDue.String()},
	}
	outcomes, err := s.Handle(t.Context(), tasks)
	testenv.Must(t, err)
	for i, want := range []delay.Outcome{0: delay.Done(), 1: delay.Done(), 2: delay.Done(),
		3: delay.RetryIn(100 * time.Millisecond),
		5: delay.Done(), 6: delay.Done(), 7: delay.Done()} {
		if i != 4 && outcomes[i] != want {
			t.Errorf("task %d, %s: %+v, want %+v", i, tasks[i].ID, outcomes[i], want)
		}
	}
	if log := s.Log.String(); strings.Count(log, "level=WARN") != 1 || !strings.Contains(log, "tasks=3") {
		t.Errorf("the log of three tasks without an order is\n%s\nwant one warning with their number", log)
	}
	left, ok := outcomes[4].Retry()
	if !ok || left > timeout || left < timeout-10*time.Second {
		t.Errorf("the order that is not due is tried again in %v (%v), want about %v", left, ok, timeout)
	}
	if s.Available(t, a) != 10 || s.Available(t, b) != 7 {
		t.Errorf("available are %d and %d, want 10 and 7", s.Available(t, a), s.Available(t, b))
	}

	again := s.Deliver(t, due, alsoDue)
	if !slices.Equal(again, []delay.Outcome{delay.Done(), delay.Done()}) || s.Available(t, a) != 10 {
		t.Errorf("the second call returned %+v, and then %d are available; want two times done, and 10", again,
			s.Available(t, a))
	}
	s.CheckInvariants(t, time.Hour) // the locked order is half an hour late
}

// aYear is longer than the time until the due time of any row of the tests.
const aYear = 365 * 24 * time.Hour

func TestPending(t *testing.T) {
	s := newShop(t)
	customer, product := s.Customer(t), s.Product(t, 100)
	var want []string
	for i := range 7 {
		o := s.MustPlace(t, customer, line(product, 1))
		want = append(want, o.ID.String())
		if i == 3 || i == 4 { // the same deadline
			s.Exec(t, `UPDATE orders SET expires_at = created_at + interval '1 hour' WHERE id = $1`, o.ID)
		}
	}
	s.Exec(t, `UPDATE orders SET expires_at = (SELECT max(expires_at) FROM orders) WHERE id = ANY ($1)`, want[3:5])
	closed := s.MustPlace(t, customer, line(product, 1))
	s.Do(t, "pay", customer, closed.ID)
	late := s.MustPlace(t, customer, line(product, 1)).ID
	s.Expire(t, late)
	want = slices.Concat([]string{late.String()}, want[:3], want[5:], want[3:5])

	walk := func(within time.Duration, limit int) (ids []string, left []time.Duration) {
		for after, pages := (keyset.Cursor{}), 0; pages == 0 || after != (keyset.Cursor{}); pages++ {
			page, next, err := s.Pending(t.Context(), after, within, limit)
			if err != nil || len(page) > limit {
				t.Fatalf("a page of %d orders, %v; want at most %d", len(page), err, limit)
			}
			for _, m := range page {
				ids, left = append(ids, m.ID), append(left, m.Left())
			}
			after = next
		}
		return ids, left
	}
	for _, limit := range []int{1, 2, 3, 8, 100} {
		ids, left := walk(aYear, limit)
		if !slices.Equal(ids, want) {
			t.Errorf("pages of %d: %v, want %v", limit, ids, want)
		}
		if left[0] > -29*time.Minute || left[1] > timeout || left[1] < timeout-time.Minute {
			t.Errorf("the times left are %v, want about -30m for the first order and %v for the second", left, timeout)
		}
	}
	if ids, _ := walk(timeout, 2); !slices.Equal(ids, want[:6]) {
		t.Errorf("due within %v: %v, want %v", timeout, ids, want[:6])
	}
	if ids, _ := walk(0, 2); !slices.Equal(ids, want[:1]) {
		t.Errorf("due until now: %v, want %v", ids, want[:1])
	}
	for overdueBy, want := range map[time.Duration][]string{time.Microsecond: want[:1], 25 * time.Minute: want[:1],
		time.Hour: nil} {
		if ids, _ := walk(-overdueBy, 2); !slices.Equal(ids, want) {
			t.Errorf("overdue by at least %v: %v, want %v", overdueBy, ids, want)
		}
	}
}
