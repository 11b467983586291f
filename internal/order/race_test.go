package order_test

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
)

// TestPayRacesTimeout has customers pay orders in the very moments in which the worker cancels them.
func TestPayRacesTimeout(t *testing.T) {
	const round = 500
	rounds := 20
	if testing.Short() {
		rounds = 2
	}
	s := newShop(t)
	customer := s.customer(t)
	paid, timedOut := 0, 0
	apart := 500 * time.Microsecond
	for range rounds {
		race := s.ordersDueSoon(t, customer, round, apart)
		won := race.run(t, s)
		before := paid
		for i, id := range race.ids {
			status := query[order.Status](t, s, `SELECT status FROM orders WHERE id = $1`, id)
			switch {
			case won[i] && status == order.Paid:
				paid++
			case !won[i] && status == order.Cancelled:
				timedOut++
			default:
				t.Errorf("order %s is %s; its payment was accepted: %v", id, status, won[i])
			}
		}
		if paid-before < round/4 {
			apart = min(2*apart, 10*time.Millisecond) // the payments fall behind on this machine
		}
	}
	t.Logf("of %d orders %d were paid and %d timed out", rounds*round, paid, timedOut)
	if least := rounds * round / 50; paid < least || timedOut < least {
		t.Errorf("no race: %d were paid, %d timed out, want %d of each at least", paid, timedOut, least)
	}
	s.keepsPromise(t, 0)
}

// race is a number of pending orders in the order of their deadlines.
type race struct {
	ids       []uuid.UUID
	deadlines []time.Time
}

// run pays each order at about its deadline and has it cancelled at its deadline, and returns which
// payments were accepted.
func (r race) run(t *testing.T, s *shop) []bool {
	customer := query[uuid.UUID](t, s, `SELECT customer_id FROM orders WHERE id = $1`, r.ids[0])
	won := make([]bool, len(r.ids))
	var racers sync.WaitGroup
	next := make(chan int)
	for range 8 {
		racers.Go(func() {
			for i := range next {
				// Not a wait for a state: each payment has to start about when its deadline is.
				time.Sleep(time.Until(r.deadlines[i]) + rand.N(10*time.Millisecond) - 8*time.Millisecond)
				_, err := s.Pay(t.Context(), customer, r.ids[i])
				if won[i] = err == nil; !won[i] && codeOf(err) != order.CodeDeadlinePassed {
					t.Errorf("pay: %v", err)
				}
			}
		})
	}
	for range 2 {
		racers.Go(func() { s.cancelUntilDone(t, r.ids) })
	}
	for i := range r.ids {
		next <- i
	}
	close(next)
	racers.Wait()
	return won
}

// ordersDueSoon makes orders whose deadlines follow each other from now on.
func (s *shop) ordersDueSoon(t *testing.T, customer uuid.UUID, n int, apart time.Duration) race {
	t.Helper()
	rows, err := s.db.QueryContext(t.Context(), `
		WITH placed AS (
			INSERT INTO orders (id, customer_id, total_cents, currency, created_at, expires_at)
			SELECT gen_random_uuid(), $1, 100, 'EUR', now() - interval '1 hour', now() + interval '50 ms' + i * $4 * interval '1 us'
			FROM generate_series(1, $3) i
			RETURNING id, expires_at
		), items AS (
			INSERT INTO order_items SELECT id, $2, 1, 100 FROM placed
		), reserved AS (
			UPDATE products SET available = 0 WHERE id = $2
		)
		SELECT id, expires_at FROM placed ORDER BY expires_at`, customer, s.product(t, int64(n)), n, apart.Microseconds())
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var r race
	for rows.Next() {
		var id uuid.UUID
		var deadline time.Time
		if err := rows.Scan(&id, &deadline); err != nil {
			t.Fatal(err)
		}
		r.ids, r.deadlines = append(r.ids, id), append(r.deadlines, deadline)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return r
}

// cancelUntilDone is a worker without a queue: it asks about the next few orders until none is pending, and
// in between sleeps until the next of them is due.
func (s *shop) cancelUntilDone(t *testing.T, ids []uuid.UUID) {
	var tasks []delay.Task
	for _, id := range ids {
		tasks = append(tasks, delay.Task{ID: id.String()})
	}
	for len(tasks) > 0 {
		batch := tasks[:min(20, len(tasks))]
		outcomes, err := s.CancelDue(t.Context(), batch)
		if err != nil {
			t.Error(err)
			return
		}
		var again []delay.Task
		wait := time.Second
		for i, outcome := range outcomes {
			if in, retry := retryOf(outcome); retry {
				again = append(again, batch[i])
				wait = min(wait, in)
			}
		}
		if len(again) == len(batch) {
			time.Sleep(wait)
		}
		tasks = append(again, tasks[len(batch):]...)
	}
}

// TestNoDeadlocks has everything that locks several products do so at once, in opposite orders.
func TestNoDeadlocks(t *testing.T) {
	s := newShop(t)
	customer := s.customer(t)
	a, b, c := s.product(t, 1_000_000), s.product(t, 1_000_000), s.product(t, 1_000_000)
	orders := [][]order.Line{
		{line(a, 1), line(b, 2), line(c, 3)},
		{line(c, 1), line(b, 2), line(a, 3)},
		{line(b, 1), line(a, 2)},
	}
	var wg sync.WaitGroup
	for i := range 9 {
		wg.Go(func() {
			for n := range 40 {
				o, _, err := s.Place(t.Context(), customer, order.Placement{Lines: orders[(i+n)%3]})
				if err != nil {
					t.Errorf("place: %v", err)
					return
				}
				if n%2 == 0 {
					if _, err := s.Cancel(t.Context(), customer, o.ID); err != nil {
						t.Errorf("cancel: %v", err)
					}
					continue
				}
				if _, err := s.db.ExecContext(t.Context(), expireSQL, o.ID); err != nil {
					t.Errorf("expire: %v", err)
				}
				if _, err := s.CancelOverdue(t.Context(), 0, 10); err != nil {
					t.Errorf("cancel overdue: %v", err)
				}
			}
		})
	}
	wg.Wait()
	// The store repeats what lost a deadlock, so errors alone would not tell.
	eventually(t, "statistics of the database", func() bool {
		return query[int64](t, s, `SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()`) > 500
	})
	if n := query[int64](t, s, `SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`); n != 0 {
		t.Errorf("%d deadlocks", n)
	}
	s.keepsPromise(t, 0)
}
