package order_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// TestPayRacesTimeout has customers pay orders while a worker cancels them: exactly one of the two succeeds for each
// order.
func TestPayRacesTimeout(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.raceTimeout(t, testenv.Rounds(800, 4_000), s.Pay, order.Paid)
	s.CheckInvariants(t, 0)
}

// TestExtendRacesTimeout has customers extend orders while a worker cancels them: exactly one of the two succeeds for
// each order.
func TestExtendRacesTimeout(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.raceTimeout(t, testenv.Rounds(200, 1000), s.Extend, order.Pending)
	s.CheckTrails(t)
}

// raceTimeout has customers change orders while a worker cancels them. It takes batches of 20 orders, whose deadlines
// are spread over about the duration of a batch. An order that is changed in time has a status afterwards.
func (s *shop) raceTimeout(
	t *testing.T, orders int, change func(ctx context.Context, customer, id uuid.UUID) (*order.Order, error),
	status order.Status,
) {
	t.Helper()
	const batch = 20
	customer := s.Customer(t)
	changed, timedOut := 0, 0
	spread := 10 * time.Millisecond
	for ids := range slices.Chunk(s.PendingOrders(t, customer, orders), batch) {
		s.spreadDeadlines(t, ids, spread)
		won := s.race(t, ids, func(id uuid.UUID) error { _, err := change(t.Context(), customer, id); return err })
		spread = nextSpread(spread, won)
		for i, got := range s.statuses(t, ids) {
			switch {
			case won[i] && got == status:
				changed++
			case !won[i] && got == order.Cancelled:
				timedOut++
			default:
				t.Errorf("order %s is %s, and its change succeeded: %v", ids[i], got, won[i])
			}
		}
	}
	t.Logf("of %d orders %d were changed and %d timed out", orders, changed, timedOut)
	if least := orders / 10; changed < least || timedOut < least {
		t.Errorf("too few races: %d orders were changed and %d timed out, want at least %d of each", changed, timedOut,
			least)
	}
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
		return spread * 2
	}
	return spread / 2
}

// race changes orders, until none is left, while it cancels those that are due. It reports which changes succeeded.
func (s *shop) race(t *testing.T, ids []uuid.UUID, change func(id uuid.UUID) error) []bool {
	t.Helper()
	won := make([]bool, len(ids))
	var customers, workers sync.WaitGroup
	const parallel = 4
	for first := range parallel {
		customers.Go(func() {
			for i := first; i < len(ids); i += parallel {
				err := change(ids[i])
				if won[i] = err == nil; !won[i] && parttest.ClassOf(err) != order.DeadlinePassed {
					t.Error(err)
				}
			}
		})
	}
	over := make(chan struct{})
	for range 2 {
		workers.Go(func() {
			for {
				s.Deliver(t, ids...)
				select {
				case <-over:
					return
				default:
				}
			}
		})
	}
	customers.Wait()
	close(over)
	workers.Wait()
	s.Deliver(t, ids...)
	return won
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
