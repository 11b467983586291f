package order_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/rest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// TestRescheduleOwesTheTask moves deadlines. An earlier one must be owed and published, because the task in the queue
// is due later. A later one owes nothing: the worker returns the task to the queue.
func TestRescheduleOwesTheTask(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer, id := s.pending(t)
	owed := func() []bool { // whether each outbox row of the order is due with it
		return testenv.QueryAll[bool](t, s.DB,
			`SELECT b.due_at = o.due_at FROM outbox b JOIN orders o ON b.task_id = o.id::text WHERE o.id = $1`, id)
	}
	s.Exec(t, `DELETE FROM outbox`)
	s.awaitPublished(t)
	s.Published.Take()

	testenv.Must(t, s.Move(t, id, time.Minute))
	if got := owed(); !slices.Equal(got, []bool{true}) {
		t.Errorf("the earlier deadline owes %v, want one task that is due then", got)
	}
	if tasks := s.Published.Take(); len(tasks) != 1 || tasks[0].ID != id.String() ||
		!ordertest.Near(tasks[0].Left(), time.Minute) {
		t.Errorf("%+v are published, want the task of the order, due in a minute", tasks)
	}
	s.Exec(t, `DELETE FROM outbox`)
	testenv.Must(t, s.Move(t, id, time.Hour))
	if got := owed(); len(got) > 0 {
		t.Errorf("the later deadline owes %v, want nothing", got)
	}
	if left, ok := s.Deliver(t, id)[0].Retry(); !ok || !ordertest.Near(left, time.Hour) {
		t.Errorf("the task is due again in %v (%v), want in an hour", left, ok)
	}
	if n := s.Notified.Of(customer, id); n != 3 {
		t.Errorf("%d notifications, want 3: of the placement, and of two moves", n)
	}
}

// TestRescheduleRaces moves deadlines between a second from now and an hour from now, while customers pay, cancel and
// extend, while other sessions hold, release and pay the orders, and while the worker and the reconciler time them out.
// No order may end early or twice, and each ends after the races.
func TestRescheduleRaces(t *testing.T) {
	t.Parallel()
	const orders, rounds = 60, 6
	s := newShop(t)
	customer, product := s.Customer(t), s.Product(t, orders)
	ids := make([]uuid.UUID, orders)
	for i := range ids {
		ids[i] = s.MustPlace(t, customer, line(product, 1)).ID
		s.Exec(t, `UPDATE orders SET expires_at = clock_timestamp() + interval '1500 ms' WHERE id = $1`, ids[i])
	}
	var racers sync.WaitGroup
	for _, race := range []struct {
		every int // it does something to every n-th order
		do    func(id uuid.UUID) error
	}{
		{1, func(id uuid.UUID) error { return s.Change(t, id, actions["earlier"]) }},
		{3, func(id uuid.UUID) error { return s.Move(t, id, time.Hour) }},
		{4, func(id uuid.UUID) error { _, err := s.Extend(t.Context(), customer, id); return err }},
		{17, func(id uuid.UUID) error { _, err := s.Pay(t.Context(), customer, id); return err }},
		{13, func(id uuid.UUID) error { _, err := s.Cancel(t.Context(), customer, id); return err }},
		{5, func(id uuid.UUID) error { return s.Change(t, id, hold) }},
		{7, func(id uuid.UUID) error { return s.Change(t, id, release) }},
		{1, func(id uuid.UUID) error { s.Deliver(t, id); return nil }},
		{1, func(uuid.UUID) error { _, err := s.timeOut(t.Context(), 0, 100); return err }},
	} {
		racers.Go(func() {
			for i := race.every; i <= rounds*orders; i += race.every {
				err := race.do(ids[(i-1)%orders])
				if err != nil && strings.HasPrefix(parttest.ClassOf(err).Code, "not a rejection") {
					t.Error(err)
				}
			}
		})
	}
	racers.Wait()
	s.CheckTrails(t)

	s.Exec(t, `UPDATE orders SET created_at = created_at - interval '1 day', expires_at = expires_at - interval '1 day',
		hold_until = hold_until - interval '1 day'
			WHERE status = 'pending'`)
	for _, id := range ids {
		s.Deliver(t, id)
	}
	if left := testenv.Query[int](t, s.DB, `SELECT count(*) FROM orders WHERE status = 'pending'`); left > 0 {
		t.Errorf("%d orders are pending after their last deadline, want none", left)
	}
	s.CheckTrails(t)
	t.Log(testenv.Query[string](t, s.DB, `SELECT string_agg(n || ' ' || type, ', ' ORDER BY type) FROM (
		SELECT type, count(*) AS n FROM order_trail GROUP BY type) AS trail`))
}

// TestRescheduleOverHTTP moves the deadline of an order as an operator, repeats the request, and sends requests with
// wrong bodies. Answers are checked against the contract.
func TestRescheduleOverHTTP(t *testing.T) {
	t.Parallel()
	s := newHTTPShop(t)
	customer, product := s.Customer(t), s.Product(t, 5)
	o := s.MustPlace(t, customer, line(product, 1))
	path := fmt.Sprintf("POST /ops/api/orders/%s/deadline", o.ID)
	body := func(deadline time.Time, reason string) string {
		return fmt.Sprintf(`{"deadline": %q, "reason": %q}`, deadline.Format(time.RFC3339Nano), reason)
	}
	deadline := time.Now().Add(2 * time.Hour).Round(time.Microsecond)
	moved := s.sends(t, 200, path, body(deadline, "a strike"))
	if got := decode[order.Order](t, moved); !got.ExpiresAt.Equal(deadline) {
		t.Errorf("the answer is %s, want the deadline %v", moved.Body, deadline)
	}
	s.sends(t, 200, path, body(deadline, strings.Repeat("ü", 500)))
	s.sends(t, 200, path, strings.ToLower(body(deadline.UTC(), "why")))
	events, err := s.Events(t.Context(), customer, o.ID)
	if err != nil || len(events) != 2 || events[1].Reason != "a strike" || !events[1].Deadline.Equal(deadline) {
		t.Errorf("the events are %+v, %v; want one move, with the deadline and the reason of the first request",
			events, err)
	}
	for name, test := range map[string]struct {
		body, pointer string
	}{
		"no deadline":      {`{"reason": "why"}`, "/deadline"},
		"not a time":       {`{"deadline": "tomorrow", "reason": "why"}`, "/deadline"},
		"no time zone":     {`{"deadline": "2026-01-31T09:30:00", "reason": "why"}`, "/deadline"},
		"in the past":      {body(time.Now().Add(-time.Hour), "why"), "/deadline"},
		"beyond 30 days":   {body(time.Now().Add(721*time.Hour), "why"), "/deadline"},
		"no reason":        {body(deadline, " "), "/reason"},
		"a long reason":    {body(deadline, strings.Repeat("x", 501)), "/reason"},
		"an unknown field": {`{"deadline": "2026-01-31T09:30:00Z", "reason": "why", "by": 3}`, "/by"},
	} {
		a := s.rejects(t, rest.Invalid, path, test.body)
		if p := decode[rest.Problem](t, a); len(p.Errors) != 1 || p.Errors[0].Pointer != test.pointer {
			t.Errorf("%s: the answer is %s, want one error at %s", name, a.Body, test.pointer)
		}
	}
	s.Hold(t, o.ID)
	s.rejects(t, order.CheckoutOpen, path, body(time.Now().Add(time.Minute), "why"))
	s.rejects(t, rest.NotFound, "POST /ops/api/orders/"+uuid.NewString()+"/deadline", body(deadline, "why"))
}

// TestOrderKeepsNameAndPrice changes a product after it was ordered. Both statements that read orders return the name
// and the price as ordered.
func TestOrderKeepsNameAndPrice(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer, product := s.Customer(t), s.Product(t, 5)
	want := s.MustPlace(t, customer, line(product, 2))
	s.Exec(t, `UPDATE products SET name = 'renamed', price_cents = 999 WHERE id = $1`, product)
	o, err := s.Get(t.Context(), customer, want.ID)
	testenv.Must(t, err)
	list, _, err := s.List(t.Context(), customer, nil, 1)
	testenv.Must(t, err)
	if !slices.Equal(o.Items, want.Items) || !slices.Equal(list[0].Items, want.Items) {
		t.Errorf("the items are %+v, and %+v in the list; want %+v", o.Items, list[0].Items, want.Items)
	}
}
