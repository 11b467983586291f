package order_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// TestPayRacesTimeout has customers pay orders while a worker cancels them: exactly one of the two succeeds for each
// order. The test takes batches of 20 orders, whose deadlines are spread over about the duration of a batch.
func TestPayRacesTimeout(t *testing.T) {
	t.Parallel()
	const batch = 20
	orders := testenv.Rounds(800, 4_000)
	s := newShop(t)
	customer := s.Customer(t)
	paid, timedOut := 0, 0
	spread := 10 * time.Millisecond
	for ids := range slices.Chunk(s.PendingOrders(t, customer, orders), batch) {
		s.spreadDeadlines(t, ids, spread)
		won := s.race(t, customer, ids)
		spread = nextSpread(spread, won)
		for i, status := range s.statuses(t, ids) {
			switch {
			case won[i] && status == order.Paid:
				paid++
			case !won[i] && status == order.Cancelled:
				timedOut++
			default:
				t.Errorf("order %s is %s, and its payment succeeded: %v", ids[i], status, won[i])
			}
		}
	}
	t.Logf("of %d orders %d were paid and %d timed out", orders, paid, timedOut)
	if least := orders / 5; paid < least || timedOut < least {
		t.Errorf("too few races between payments and timeouts: %d orders were paid and %d timed out, want at least "+
			"%d of each", paid, timedOut, least)
	}
	s.CheckInvariants(t, 0)
}

// spreadDeadlines gives each order a random deadline between now and spread.
func (s *shop) spreadDeadlines(t *testing.T, ids []uuid.UUID, spread time.Duration) {
	t.Helper()
	s.Exec(t,
		`UPDATE orders SET expires_at = clock_timestamp() + random() * $2::float8 * interval '1 us'
			WHERE id = ANY ($1)`,
		ids, spread.Microseconds())
}

// statuses returns the statuses of orders.
func (s *shop) statuses(t *testing.T, ids []uuid.UUID) (statuses []order.Status) {
	t.Helper()
	stored := testenv.Query[string](t, s.DB, `SELECT string_agg(o.status, ',' ORDER BY n)
		FROM unnest($1::uuid[]) WITH ORDINALITY AS batch (id, n) JOIN orders o USING (id)`, ids)
	for status := range strings.SplitSeq(stored, ",") {
		statuses = append(statuses, order.Status(status))
	}
	if len(statuses) != len(ids) {
		t.Fatalf("found %d of %d orders", len(statuses), len(ids))
	}
	return statuses
}

// nextSpread returns the spread of the deadlines of the next batch. won tells which customers were in time in this
// batch. The spread adapts to the speed of the machine, so that about half of the customers are in time.
func nextSpread(spread time.Duration, won []bool) time.Duration {
	inTime := 0
	for _, w := range won {
		if w {
			inTime++
		}
	}
	if inTime < len(won)/2 {
		return spread * 5 / 4
	}
	return spread * 4 / 5
}

// race pays orders while it cancels those that are due, until none is pending. It reports which payments succeeded.
func (s *shop) race(t *testing.T, customer uuid.UUID, ids []uuid.UUID) []bool {
	won := make([]bool, len(ids))
	var racers sync.WaitGroup
	const customers = 4
	for first := range customers {
		racers.Go(func() {
			for i := first; i < len(ids); i += customers {
				_, err := s.Pay(t.Context(), customer, ids[i])
				if won[i] = err == nil; !won[i] && parttest.ClassOf(err) != order.DeadlinePassed {
					t.Errorf("pay: %v", err)
				}
			}
		})
	}
	for range 2 {
		racers.Go(func() { s.cancelUntilDone(t, ids) })
	}
	racers.Wait()
	return won
}

// cancelUntilDone passes orders to the worker's handler again and again, until none is pending.
func (s *shop) cancelUntilDone(t *testing.T, ids []uuid.UUID) {
	tasks := make([]delay.Task, len(ids))
	for i, id := range ids {
		tasks[i].ID = id.String()
	}
	for len(tasks) > 0 {
		outcomes, err := s.Handle(t.Context(), tasks)
		if err != nil {
			t.Error(err)
			return
		}
		var again []delay.Task
		for i, outcome := range outcomes {
			if outcome != delay.Done() {
				again = append(again, tasks[i])
			}
		}
		tasks = again
	}
}

// TestExtendRacesTimeout has customers extend orders while a worker cancels them: exactly one of the two succeeds for
// each order. As in TestPayRacesTimeout, deadlines are spread over about the duration of a batch.
func TestExtendRacesTimeout(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer := s.Customer(t)
	orders := testenv.Rounds(200, 1000)
	extended, timedOut := 0, 0
	spread := 15 * time.Millisecond
	for ids := range slices.Chunk(s.PendingOrders(t, customer, orders), 20) {
		s.spreadDeadlines(t, ids, spread)
		won := make([]bool, len(ids))
		var racers sync.WaitGroup
		racers.Go(func() {
			for i, id := range ids {
				_, err := s.Extend(t.Context(), customer, id)
				if won[i] = err == nil; !won[i] && parttest.ClassOf(err) != order.DeadlinePassed {
					t.Errorf("extend: %v", err)
				}
			}
		})
		for range 2 {
			racers.Go(func() {
				for range 5 {
					s.Deliver(t, ids...)
				}
			})
		}
		racers.Wait()
		spread = nextSpread(spread, won)
		s.Deliver(t, ids...)
		for i, id := range ids {
			switch status := s.Status(t, id); {
			case won[i] && status == "pending":
				extended++
			case !won[i] && status == "cancelled timeout":
				timedOut++
			default:
				t.Errorf("order %s is %s, and its extension succeeded: %v", id, status, won[i])
			}
		}
	}
	t.Logf("%d orders were extended and %d timed out", extended, timedOut)
	if least := orders / 20; extended < least || timedOut < least {
		t.Errorf("too few races: %d orders were extended and %d timed out, want at least %d of each", extended,
			timedOut, least)
	}
	s.CheckTrails(t)
}

// TestNoDeadlocks runs in parallel all operations that lock several products. The lines of the orders name the products
// in different sequences.
func TestNoDeadlocks(t *testing.T) {
	s := newShop(t)
	customer := s.Customer(t)
	a, b, c := s.Product(t, 1_000_000), s.Product(t, 1_000_000), s.Product(t, 1_000_000)
	orders := [][]order.Line{
		{line(a, 1), line(b, 2), line(c, 3)},
		{line(c, 1), line(b, 2), line(a, 3)},
		{line(b, 1), line(a, 2)},
	}
	const callers = 9
	rounds := testenv.Rounds(15, 40)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for n := range rounds {
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
				if _, err := s.DB.ExecContext(t.Context(), ordertest.ExpireSQL, o.ID); err != nil {
					t.Errorf("expire: %v", err)
				}
				if _, err := s.timeOut(t.Context(), 0, 10); err != nil {
					t.Errorf("time out: %v", err)
				}
			}
		})
	}
	wg.Wait()
	// A deadlock causes no error here, because the store retries the statement. PostgreSQL counts the deadlocks. An
	// idle session reports its counts after up to 10 s, one that ends reports them at once.
	s.DB.SetMaxIdleConns(-1)
	commits := int64(callers * rounds) // at least, because each placement is one
	testenv.Eventually(t, fmt.Sprintf("more than %d commits in the statistics of the database", commits), func() bool {
		return testenv.Query[int64](t, s.DB,
			`SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()`) > commits
	})
	if n := testenv.Query[int64](t, s.DB,
		`SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`); n != 0 {
		t.Errorf("%d deadlocks, want 0", n)
	}
	s.CheckInvariants(t, 0)
}
