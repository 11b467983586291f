package shop_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"example.com/shop/internal/delay"
	"example.com/shop/internal/order"
	"example.com/shop/internal/reconcile"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/timeout"
)

// TestAnyShareOfStuckOrders draws poisoned, locked and good orders that are due, and has the worker or the reconciler
// time them out. The good orders are cancelled at once. A poisoned order counts as failed: in its task if the worker
// times it out, or in the report of the reconciler.
func TestAnyShareOfStuckOrders(t *testing.T) {
	t.Parallel()
	a := newTestApp(t, testenv.Redis(t), 1)
	rapid.Check(t, func(r *rapid.T) {
		testenv.Exec(t, a.Pool,
			`WITH i AS (DELETE FROM order_items), e AS (DELETE FROM order_events) DELETE FROM orders`)
		testenv.Must(t, a.Redis.Del(t.Context(), dueKey, attemptsKey).Err())
		groups := rapid.SliceOfN(rapid.SampledFrom([]string{"good", "poisoned", "locked order", "locked product"}), 1,
			30).Draw(r, "orders")
		orders := map[string][]string{}
		all := make([]string, len(groups))
		for i, group := range groups {
			all[i] = uuid.NewString()
			orders[group] = append(orders[group], all[i])
		}
		for group, ids := range orders {
			insertOverdue(t, a, ids)
			switch group {
			case "poisoned":
				testenv.Exec(t, a.Pool,
					`UPDATE products SET supply = 0 WHERE id IN (SELECT product_id FROM order_items
						WHERE order_id = $1)`, ids[0])
			case "locked order":
				defer testenv.HoldLock(t, a.Pool, `SELECT FROM orders WHERE id = ANY ($1) FOR UPDATE`, ids)()
			case "locked product":
				defer testenv.HoldLock(t, a.Pool,
					`SELECT FROM products WHERE id IN (SELECT product_id FROM order_items
						WHERE order_id = ANY ($1)) FOR UPDATE`, ids)()
			}
		}

		if rapid.Bool().Draw(r, "by the worker") {
			msgs := make([]delay.Message, len(all))
			for i, id := range all {
				msgs[i] = delay.In(id, 0)
			}
			testenv.Must(t, a.Kinds[0].Queue.Schedule(t.Context(), msgs...))
			locate := func() []delay.Location {
				locations, err := a.Kinds[0].Queue.Locate(t.Context(), all)
				testenv.Must(t, err)
				return locations
			}
			failed := func(task delay.Location) bool { return task.Attempts > 0 }
			done := func(task delay.Location) bool { return task.State == delay.Absent }
			ctx, stop := context.WithCancel(t.Context())
			stopped := make(chan error, 1)
			go func() { stopped <- a.Kinds[0].Worker.Run(ctx) }()
			testenv.Eventually(t, "each good order is cancelled, and each poisoned one has failed", func() bool {
				for i, task := range locate() {
					if groups[i] == "good" && !done(task) || groups[i] == "poisoned" && !failed(task) {
						return false
					}
				}
				return true
			})
			stop()
			testenv.Must(t, <-stopped)
			for i, task := range locate() {
				if failed(task) != (groups[i] == "poisoned") || done(task) != (groups[i] == "good") {
					r.Errorf("the task of a %s order is %+v, want failed attempts if poisoned, and no task if good",
						groups[i], task)
				}
			}
		} else {
			// a new reconciler, which remembers no order of an earlier draw
			table := timeout.NewTable(a.DB, order.CancelKind, a.Kinds[0].Rows, a.Log)
			reconciler, err := reconcile.New(a.Pool, order.CancelKind, table, a.Kinds[0].Queue, reconcile.Config{}, a.Log, nil)
			testenv.Must(t, err)
			report, err := reconciler.Sweep(t.Context())
			testenv.Must(t, err)
			locked, failed := len(orders["locked order"])+len(orders["locked product"]), len(orders["poisoned"])
			// The report may count a locked order as failed, if it was in one statement with a poisoned order.
			if report.Overdue != len(orders["good"]) || report.Locked > locked || report.Failed < failed ||
				report.Failed > failed+locked {
				r.Errorf("orders %v: got the report %+v, want overdue %d, locked at most %d, failed %d to %d",
					groups, report, len(orders["good"]), locked, failed, failed+locked)
			}
		}
		var pending int
		testenv.Must(t, a.Pool.QueryRowContext(t.Context(),
			`SELECT count(*) FROM orders WHERE status = 'pending' AND NOT id = ANY ($1)`, append([]string{},
				orders["good"]...)).Scan(&pending))
		if want := len(all) - len(orders["good"]); pending != want {
			r.Errorf("orders %v: %d that cannot be cancelled are pending, want %d", groups, pending, want)
		}
		testenv.Must(t, a.Pool.QueryRowContext(t.Context(),
			`SELECT count(*) FROM orders WHERE status = 'pending' AND id = ANY ($1)`, append([]string{},
				orders["good"]...)).Scan(&pending))
		if pending > 0 {
			r.Errorf("orders %v: %d good ones are pending, want 0", groups, pending)
		}
	})
}

// TestSlowOrder has an order whose cancellation takes longer than the statement timeout. The sweep cancels the other
// orders.
func TestSlowOrder(t *testing.T) {
	testenv.Slow(t, "waits for the limit of a statement")
	t.Parallel() // most of the time it waits for the limit of a statement
	a := newTestApp(t, testenv.Redis(t), 1)
	ids := []string{uuid.NewString(), uuid.NewString(), uuid.NewString()}
	insertOverdue(t, a, ids)
	testenv.Exec(t, a.Pool,
		`CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(60); RETURN NEW; END $$`)
	testenv.Exec(t, a.Pool,
		`CREATE TRIGGER slow BEFORE UPDATE ON orders FOR EACH ROW WHEN (NEW.id = '`+ids[1]+`') EXECUTE FUNCTION slow()`)
	if report := sweep(t, a); report.Overdue != 2 || report.Failed != 1 || report.Outcome != reconcile.Partial {
		t.Errorf("got the report %+v, want partial with overdue 2 and failed 1", report)
	}
}

// insertOverdue inserts orders that are overdue by an hour. They reserve the stock of a new product.
func insertOverdue(t *testing.T, a *testApp, ids []string) {
	t.Helper()
	customer, product := uuid.New(), uuid.New()
	testenv.Exec(t, a.Pool,
		`INSERT INTO products (id, name, price_cents, currency, supply, available)
			VALUES ($1, 'thing', 100, 'EUR', $2, 0)`, product, len(ids))
	testenv.Exec(t, a.Pool, `
		INSERT INTO orders (id, customer_id, total_cents, currency, created_at, expires_at)
		SELECT id::uuid, $2, 100, 'EUR', now() - interval '2 hours', now() - interval '1 hour'
			FROM unnest($1::text[]) AS id`, ids, customer)
	testenv.Exec(t, a.Pool,
		`INSERT INTO order_items (order_id, product_id, quantity, unit_price_cents, name)
			SELECT id::uuid, $2, 1, 100, 'a product' FROM unnest($1::text[]) AS id`, ids, product)
}
