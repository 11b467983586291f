package order_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/testenv"
)

// dueAtOnce is the number of orders that are due at one instant.
const dueAtOnce = 20_000

// BenchmarkCancelDue cancels 20,000 overdue orders in batches of 500 by two goroutines, as a worker does.
func BenchmarkCancelDue(b *testing.B) {
	s := newShop(b)
	for b.Loop() {
		b.StopTimer()
		batches := make(chan []delay.Task, dueAtOnce)
		for ids := range slices.Chunk(s.overdueOrders(b, dueAtOnce), 500) {
			tasks := make([]delay.Task, len(ids))
			for i, id := range ids {
				tasks[i].ID = id.String()
			}
			batches <- tasks
		}
		close(batches)
		b.StartTimer()
		var loops sync.WaitGroup
		for range 2 {
			loops.Go(func() {
				for tasks := range batches {
					if _, err := s.Handle(b.Context(), tasks); err != nil {
						b.Error(err)
					}
				}
			})
		}
		loops.Wait()
	}
	b.ReportMetric(dueAtOnce*float64(b.N)/b.Elapsed().Seconds(), "orders/s")
	s.CheckInvariants(b, 0)
}

// overdueOrders inserts n pending orders whose deadline has passed, spread over 20 new products, and returns their ids.
func (s *shop) overdueOrders(t testing.TB, n int) []uuid.UUID {
	t.Helper()
	for range 20 {
		s.Product(t, int64(n))
	}
	s.Exec(t, `
		WITH placed AS (
			INSERT INTO orders (id, customer_id, total_cents, currency, created_at, expires_at)
			SELECT gen_random_uuid(), $1, 100, 'EUR', now() - interval '1 hour', now() FROM generate_series(1, $2)
			RETURNING id
		), items AS (
			INSERT INTO order_items (order_id, product_id, quantity, unit_price_cents, name)
			SELECT placed.id, product.id, 1, 100, 'a product'
			FROM (SELECT id, row_number() OVER () % 20 AS n FROM placed) placed
			JOIN (SELECT id, row_number() OVER () - 1 AS n FROM products WHERE available = supply
				AND supply = $2) product USING (n)
			RETURNING product_id
		)
		UPDATE products SET available = available - sold.n FROM (SELECT product_id, count(*) AS n FROM items
			GROUP BY product_id) sold
		WHERE id = product_id`, s.Customer(t), n)
	s.Exec(t, `VACUUM ANALYZE`)
	return testenv.QueryAll[uuid.UUID](t, s.DB,
		`SELECT id FROM orders WHERE status = 'pending' ORDER BY expires_at, id`)
}
