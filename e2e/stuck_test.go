package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
)

// TestOrdersThatCannotBeCancelled has thousands of overdue orders that cannot be cancelled, because their product was
// withdrawn by hand or because another session holds them, and some good orders that are due after them. The good ones
// keep their bound, with workers and without. When the cause is mended, the others are cancelled without a hand.
func TestOrdersThatCannotBeCancelled(t *testing.T) {
	t.Parallel()
	const stuck, good = 6000, 60
	withdraw := func(d *deployment, product uuid.UUID) (mend func()) {
		d.exec(`UPDATE products SET supply = 0, available = 0 WHERE id = $1`, product)
		return func() { d.exec(`UPDATE products SET supply = $2 WHERE id = $1`, product, stuck) }
	}
	hold := func(statement string) func(*deployment, uuid.UUID) func() {
		return func(d *deployment, product uuid.UUID) (mend func()) {
			_, release := d.transaction(statement, product)
			return release
		}
	}
	ordersOf := `SELECT FROM orders WHERE id IN (SELECT order_id FROM order_items WHERE product_id = $1) FOR UPDATE`
	withWorkers := []string{"worker", "worker", "relay", "reconciler"}
	for name, test := range map[string]struct {
		processes []string
		spoil     func(d *deployment, product uuid.UUID) (mend func())
	}{
		"withdrawn":                         {withWorkers, withdraw},
		"withdrawn, without workers":        {[]string{"relay", "reconciler"}, withdraw},
		"orders locked, without workers":    {[]string{"relay", "reconciler"}, hold(ordersOf)},
		"a product locked":                  {withWorkers, hold(`SELECT FROM products WHERE id = $1 FOR UPDATE`)},
		"a product locked, without workers": {[]string{"relay", "reconciler"}, hold(`SELECT FROM products WHERE id = $1 FOR UPDATE`)},
	} {
		t.Run(name, func(t *testing.T) {
			measured(t, func(t *testing.T) (exceeded []string) {
				d := deploy(t, needs{processes: test.processes})
				bad := d.due(stuck, 4*time.Second)
				mend := test.spoil(d, bad)
				sound := d.due(good, 6*time.Second)
				eventually(t, "good orders cancelled", func() bool { return d.pending(sound) == 0 })
				if n := d.pending(bad); n != stuck {
					t.Errorf("%v orders cannot be cancelled, want %d: the test shows nothing", n, stuck)
				}
				late := d.number(`SELECT max(extract(epoch FROM cancelled_at - expires_at))
					FROM orders JOIN order_items ON order_id = id WHERE product_id = $1`, sound)
				t.Logf("the last good order was cancelled %.2f s late", late)
				// Interval and grace, 4 s, and half an interval. The bound leaves a loaded machine three seconds more.
				if most := 8.0; late > most {
					exceeded = append(exceeded, fmt.Sprintf("a good order was cancelled %.1f s late, the bound is %v s", late, most))
				}
				mend()
				eventually(t, "the others cancelled", func() bool { return d.pending(bad) == 0 })
				d.start("worker") // which drops the tasks that are left
				d.healthy(t)
				d.kill(d.all("")...)
				return exceeded
			})
		})
	}
}

// pending counts a product's pending orders.
func (d *deployment) pending(product uuid.UUID) float64 {
	d.t.Helper()
	return d.number(`SELECT count(*) FROM orders JOIN order_items ON order_id = id WHERE product_id = $1 AND status = 'pending'`, product)
}

// due adds orders of a product of their own, all due at one instant from now on, and has the relay schedule them.
func (d *deployment) due(orders int, in time.Duration) (product uuid.UUID) {
	d.t.Helper()
	product, customer := uuid.New(), uuid.New()
	d.exec(`INSERT INTO customers (id) VALUES ($1)`, customer)
	d.exec(`INSERT INTO products (id, name, price_cents, currency, supply, available) VALUES ($1, 'thing', 100, 'EUR', $2, 0)`, product, orders)
	d.exec(`
		WITH placed AS (
			INSERT INTO orders (id, customer_id, total_cents, currency, created_at, expires_at)
			SELECT gen_random_uuid(), $1, 100, 'EUR', now(), now() + $2 * interval '1 s'
			FROM generate_series(1, $3::int)
			RETURNING id, expires_at
		), items AS (
			INSERT INTO order_items (order_id, product_id, quantity, unit_price_cents) SELECT id, $4, 1, 100 FROM placed
		), events AS (
			INSERT INTO order_events (order_id, type, actor, at) SELECT id, 'placed', 'customer', now() FROM placed
		)
		INSERT INTO outbox (kind, task_id, due_at) SELECT 'order.cancel', id::text, expires_at FROM placed`,
		customer, in.Seconds(), orders, product)
	return product
}
