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
	for range rounds {
		ids, deadlines := s.ordersDueSoon(t, customer, round)
		won := make([]bool, round) // by the payment
		var racers sync.WaitGroup
		next := make(chan int)
		for range 8 {
			racers.Go(func() {
				for i := range next {
					// Not a wait for a state: each payment has to start about when its deadline is.
					time.Sleep(time.Until(deadlines[i]) + rand.N(10*time.Millisecond) - 8*time.Millisecond)
					_, err := s.Pay(t.Context(), customer, ids[i])
					if won[i] = err == nil; !won[i] && codeOf(t, err) != order.CodeDeadlinePassed {
						t.Errorf("pay: %v", err)
					}
				}
			})
		}
		for range 2 {
			racers.Go(func() { s.cancelUntilDone(t, ids) })
		}
		for i := range ids {
			next <- i
		}
		close(next)
		racers.Wait()
		for i, id := range ids {
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
	}
	t.Logf("of %d orders %d were paid and %d timed out", rounds*round, paid, timedOut)
	if least := rounds * round / 50; paid < least || timedOut < least {
		t.Errorf("no race: %d were paid, %d timed out, want %d of each at least", paid, timedOut, least)
	}
	s.keepsPromise(t, 0)
}

// ordersDueSoon makes orders with deadlines close to each other, from now on.
func (s *shop) ordersDueSoon(t *testing.T, customer uuid.UUID, n int) ([]uuid.UUID, []time.Time) {
	t.Helper()
	product := s.product(t, int64(n))
	rows, err := s.db.QueryContext(t.Context(), `
		WITH placed AS (
			INSERT INTO orders (id, customer_id, total_cents, currency, created_at, expires_at)
			SELECT gen_random_uuid(), $1, 100, 'EUR', now() - interval '1 hour', now() + interval '50 ms' + i * interval '700 us'
			FROM generate_series(1, $3) i
			RETURNING id, expires_at
		), items AS (
			INSERT INTO order_items SELECT id, $2, 1, 100 FROM placed
		), reserved AS (
			UPDATE products SET available = 0 WHERE id = $2
		)
		SELECT id, expires_at FROM placed ORDER BY expires_at`, customer, product, n)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var ids []uuid.UUID
	var deadlines []time.Time
	for rows.Next() {
		var id uuid.UUID
		var deadline time.Time
		if err := rows.Scan(&id, &deadline); err != nil {
			t.Fatal(err)
		}
		ids, deadlines = append(ids, id), append(deadlines, deadline)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return ids, deadlines
}

// cancelUntilDone is a worker without a queue: it asks about the next orders, again and again, until none
// is pending.
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
		for i, outcome := range outcomes {
			if outcome != delay.Done() {
				again = append(again, batch[i])
			}
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
				s.expire(t, o.ID)
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
