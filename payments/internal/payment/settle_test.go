package payment_test

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/keyset"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/timeout"
	"example.com/shop/payments/internal/attempt"
	"example.com/shop/payments/internal/check"
	"example.com/shop/payments/internal/provider"
)

// about reports whether two durations differ by less than a second plus a twentieth of the expected one, at most by 11
// s.
func about(got, want time.Duration) bool {
	return (got - want).Abs() < time.Second+min(want/20, 10*time.Second)
}

// TestPollsOfOpenAttempts checks the time between two polls: about 5 min, and no later than the end of the checkout.
func TestPollsOfOpenAttempts(t *testing.T) {
	s := newMemoryShop(t)
	for _, test := range []struct{ age, from, to time.Duration }{
		{30 * time.Second, 4 * time.Minute, 6 * time.Minute},
		{20 * time.Minute, 4 * time.Minute, 6 * time.Minute},
		{27 * time.Minute, 2 * time.Minute, 3 * time.Minute}, // until the deadline
	} {
		o, a := s.placeOpen(t)
		s.shift(t, o.ID, test.age)
		if left, again := s.settle(t, o.ID); !again || left < test.from || left > test.to {
			t.Errorf("an attempt of age %v is due again in %v, %v; want %v to %v", test.age, left, again, test.from, test.to)
		}
		s.wantAttempt(t, o, a.ID, "open")
	}
}

// TestBackoffOfClosingAttempts checks the time between two checks while the provider does not answer: a twentieth of
// the time since the closing began, from 2 s to 1 min, more or less by a tenth.
func TestBackoffOfClosingAttempts(t *testing.T) {
	s := newMemoryShop(t)
	for _, test := range []struct{ since, want time.Duration }{
		{time.Second, 2 * time.Second},
		{40 * time.Second, 2 * time.Second},
		{time.Minute, 3 * time.Second},
		{10 * time.Minute, 30 * time.Second},
		{24 * time.Hour, time.Minute},
	} {
		s.mem.fail("", nil)
		o, _ := s.placeOpen(t)
		s.mem.fail("", failed(provider.Denied, "")) // opens no breaker
		s.shiftToDeadline(t, o.ID, test.since)
		if left, again := s.settle(t, o.ID); !again || (left-test.want).Abs() > test.want/10+500*time.Millisecond {
			t.Errorf("an attempt that has been closing for %v is due again in %v, %v; want %v", test.since, left, again, test.want)
		}
	}
}

// TestBackoffOfRefunds checks the time between two checks of a refund: a tenth of its age, from 2 s to 1 h.
func TestBackoffOfRefunds(t *testing.T) {
	t.Parallel()
	s := newMemoryShop(t)
	s.mem.state = provider.Sent
	for _, test := range []struct{ age, want time.Duration }{
		{0, 2 * time.Second},
		{20 * time.Second, 2 * time.Second},
		{10 * time.Minute, time.Minute},
		{24 * time.Hour, time.Hour},
	} {
		o, a := s.late(t)
		s.shift(t, o.ID, test.age)
		if left, again := handle(t, s.Refunds().Handle, s.refundOf(t, a.ID))[0].Retry(); !again || !about(left, test.want) {
			t.Errorf("a refund of age %v is due again in %v, %v; want %v", test.age, left, again, test.want)
		}
	}
}

// TestTakeDoesNotSpin checks that an attempt is not due right after a check, whatever has moved since the check before.
func TestTakeDoesNotSpin(t *testing.T) {
	s := newMemoryShop(t)
	o, _ := s.placeOpen(t)
	check := func(step string, calls int) {
		t.Helper()
		before := s.mem.count("expire") + s.mem.count("retrieve")
		for i := range 3 {
			if left, again := s.settle(t, o.ID); !again || left < time.Second {
				t.Errorf("%s: check %d: due again in %v, %v; want later", step, i, left, again)
			}
		}
		if n := s.mem.count("expire") + s.mem.count("retrieve") - before; n != calls {
			t.Errorf("%s: the provider was asked %d times, want %d", step, n, calls)
		}
	}
	check("opened", 0)
	s.shift(t, o.ID, 30*time.Second)
	check("first poll", 1)
	_, err := s.orders.Extend(t.Context(), o.CustomerID, o.ID)
	testenv.Must(t, err)
	check("extended", 0)
	s.shift(t, o.ID, 6*time.Minute)
	check("poll after the extension", 1)

	s.mem.fail("", failed(provider.Denied, ""))
	s.shiftToDeadline(t, o.ID, time.Second)
	check("deadline passed", 1) // expire; without an answer there is nothing to retrieve
	s.shift(t, o.ID, 90*time.Second)
	check("still closing", 1)
	s.cancelDue(t, o.ID)
	s.shift(t, o.ID, time.Hour)
	s.cancelDue(t, o.ID)
	check("cancelled while closing", 1)
	s.mem.fail("", nil)
	s.settleNow(t, o.ID)
	if left, again := s.settle(t, o.ID); again {
		t.Errorf("the task of a closed attempt is due again in %v, want it done", left)
	}
}

// TestForeignTasks checks that tasks whose ids belong to no row are done. That the database is away is an outage.
func TestForeignTasks(t *testing.T) {
	s := newMemoryShop(t)
	_, a := s.placeOpen(t)
	foreign := []string{"", "7", "foreign", "{" + a.ID.String() + "}", "urn:uuid:" + a.ID.String(), uuid.NewString()}
	for name, handler := range map[string]delay.Handler{"settle": s.Attempts().Handle, "refund": s.Refunds().Handle} {
		for i, outcome := range handle(t, handler, append(slices.Clone(foreign), a.ID.String())...) {
			_, again := outcome.Retry()
			if want := i == len(foreign) && name == "settle"; again != want {
				t.Errorf("%s: task %d is due again: %v, want %v", name, i, again, want)
			}
		}
	}
	testenv.DisablePostgres(t, s.url)
	for name, handler := range map[string]delay.Handler{"settle": s.Attempts().Handle, "refund": s.Refunds().Handle} {
		_, err := handler(t.Context(), []delay.Task{{ID: a.ID.String()}})
		if answered, outage := delay.IsOutage(err); !outage || answered {
			t.Errorf("%s: without a database the handler returns %v, want an outage without an answer", name, err)
		}
	}
}

// aYear is longer than the time until the next check of any row of the tests.
const aYear = 365 * 24 * time.Hour

// TestPending reads the table of settle tasks page by page.
func TestPending(t *testing.T) {
	s := newMemoryShop(t)
	attempts := make([]*attempt.Attempt, 5)
	for i, minutes := range []int{-1, 0, 1, 0, 3} {
		_, attempts[i] = s.placeOpen(t)
		s.exec(t, `UPDATE payment_attempts SET next_check = now() + $2 * interval '1 minute' WHERE id = $1`, attempts[i].ID, minutes)
	}
	paid, a := s.placeOpen(t)
	s.pay(t, a.CheckoutURL)
	s.settleNow(t, paid.ID)

	table := s.Attempts()
	ids := func(within time.Duration, limit int) (all []uuid.UUID, pages int) {
		var page []delay.Message
		for next := (keyset.Cursor{}); ; {
			var err error
			page, next, err = table.Pending(t.Context(), next, within, limit)
			testenv.Must(t, err)
			pages++
			for _, m := range page {
				all = append(all, uuid.MustParse(m.ID))
			}
			if next == (keyset.Cursor{}) {
				return all, pages
			}
		}
	}
	inOrder := func(indexes ...int) (want []uuid.UUID) {
		for _, i := range indexes {
			want = append(want, attempts[i].ID)
		}
		return want
	}
	for _, test := range []struct {
		name   string
		within time.Duration
		limit  int
		want   []uuid.UUID
		pages  int
	}{
		{"all, one page", aYear, 10, inOrder(0, 1, 3, 2, 4), 1},
		{"all, pages of 2", aYear, 2, inOrder(0, 1, 3, 2, 4), 3},
		{"all, pages of 1", aYear, 1, inOrder(0, 1, 3, 2, 4), 6},
		{"overdue by 30 s", -30 * time.Second, 10, inOrder(0), 1},
		{"within 90 s", 90 * time.Second, 10, inOrder(0, 1, 3, 2), 1},
		{"overdue by an hour", -time.Hour, 10, nil, 1},
	} {
		if got, pages := ids(test.within, test.limit); !slices.Equal(got, test.want) || pages != test.pages {
			t.Errorf("%s: %v in %d pages, want %v in %d", test.name, got, pages, test.want, test.pages)
		}
	}
	page, _, err := table.Pending(t.Context(), keyset.Cursor{}, aYear, 10)
	testenv.Must(t, err)
	for i, want := range []time.Duration{-time.Minute, 0, 0, time.Minute, 3 * time.Minute} {
		if math.Abs(float64(page[i].Left()-want)) > float64(10*time.Second) {
			t.Errorf("row %d is due in %v, want %v", i, page[i].Left(), want)
		}
	}
}

// TestPendingRefunds reads the table of refund tasks page by page.
func TestPendingRefunds(t *testing.T) {
	s := newMemoryShop(t)
	var want []string
	for range 3 {
		_, a := s.late(t)
		want = append(want, s.refundOf(t, a.ID))
	}
	o, a := s.late(t)
	s.sendRefund(t, a.ID)
	s.wantAttempt(t, o, a.ID, "succeeded late confirmed")
	want = append(want, s.refundOf(t, a.ID)) // after 35 days
	var got []string
	for next, pages := (keyset.Cursor{}), 0; ; pages++ {
		page, after, err := s.Refunds().Pending(t.Context(), next, aYear, 2)
		testenv.Must(t, err)
		for _, m := range page {
			got = append(got, m.ID)
		}
		if next = after; next == (keyset.Cursor{}) || pages > 5 {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the refunds that wait for a check are %v, want %v", got, want)
	}
}

// TestTimeOut checks that the reconciler settles overdue attempts and sends overdue refunds.
func TestTimeOut(t *testing.T) {
	s := newMemoryShop(t)
	var ids, orders []string
	for range 20 { // more than a batch
		o, a := s.placeOpen(t)
		s.pay(t, a.CheckoutURL)
		s.shiftToDeadline(t, o.ID, grace)
		ids, orders = append(ids, a.ID.String()), append(orders, o.ID.String())
	}
	if done, locked, err := s.Attempts().TimeOut(t.Context(), append(ids, "foreign")); done != len(ids) || locked != 0 || err != nil {
		t.Errorf("TimeOut of attempts returns %d, %d, %v; want %d", done, locked, err, len(ids))
	}
	if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM order_events WHERE type = 'released' AND actor = 'reconciler'`); n != len(ids) {
		t.Errorf("%d orders were released by the reconciler, want %d", n, len(ids))
	}
	handle(t, s.due.Handle, orders...)
	refunds, _, err := s.Refunds().Pending(t.Context(), keyset.Cursor{}, aYear, 100)
	testenv.Must(t, err)
	ids = nil
	for _, m := range refunds {
		ids = append(ids, m.ID)
	}
	if done, locked, err := s.Refunds().TimeOut(t.Context(), ids); done != 0 || locked != 0 || err != nil {
		t.Errorf("TimeOut of refunds returns %d, %d, %v; want 0, because each refund is checked again", done, locked, err)
	}
	if n := testenv.Query[int](t, s.db, `SELECT count(*) FROM refunds WHERE state = 'confirmed'`); n != len(ids) {
		t.Errorf("%d refunds are confirmed, want %d", n, len(ids))
	}
	s.check(t)
}

// TestTimeOutOfHungProvider checks that a provider that does not answer takes a bounded time of a sweep: one timeout,
// then the breaker rejects all calls.
func TestTimeOutOfHungProvider(t *testing.T) {
	t.Parallel() // it waits most of the time
	s := newMemoryShop(t)
	var ids []string
	for range 24 {
		o, a := s.placeOpen(t)
		s.checkNow(t, o.ID)
		ids = append(ids, a.ID.String())
	}
	s.mem.delay = time.Hour
	began := time.Now()
	done, locked, err := s.Attempts().TimeOut(t.Context(), ids)
	if took := time.Since(began); done != 0 || locked != 0 || err != nil || took > 15*time.Second {
		t.Errorf("TimeOut returns %d, %d, %v after %v; want nothing within 15 s", done, locked, err, took)
	}
	if n := s.called("retrieve"); n > check.BatchSize+3 { // the breaker lets one call try again after a second
		t.Errorf("the provider was asked %d times, want a batch, and at most three more", n)
	}
}

// TestTimeOutWithoutDatabase checks the error while the database is away.
func TestTimeOutWithoutDatabase(t *testing.T) {
	s := newMemoryShop(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, table := range map[string]*timeout.Table{"attempts": s.Attempts(), "refunds": s.Refunds()} {
		_, _, err := table.TimeOut(ctx, []string{uuid.NewString()})
		if answered, ok := delay.IsOutage(err); !ok || answered {
			t.Errorf("%s: TimeOut returns %v, want an outage without an answer", name, err)
		}
		if _, _, err := table.TimeOut(ctx, nil); err != nil {
			t.Errorf("%s: TimeOut of no ids returns %v, want nil", name, err)
		}
	}
}

// TestLockedAttempts checks that the handler waits for no lock of an attempt, and that the task is due again soon if
// the attempt's closing has begun meanwhile.
func TestLockedAttempts(t *testing.T) {
	s := newMemoryShop(t)
	o, a := s.placeOpen(t)
	s.shift(t, o.ID, 10*time.Minute)
	s.settle(t, o.ID) // then the next poll is minutes away
	s.shiftToDeadline(t, o.ID, time.Second)
	release := testenv.HoldLock(t, s.db, `SELECT FROM payment_attempts WHERE id = $1 FOR UPDATE`, a.ID)
	if left, again := s.settle(t, o.ID); !again || left > 200*time.Millisecond {
		t.Errorf("the task of a locked attempt is due again in %v, %v; want in 100 ms", left, again)
	}
	release()
	s.settle(t, o.ID)
	s.wantAttempt(t, o, a.ID, "closed")
}
