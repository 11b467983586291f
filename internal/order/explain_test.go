package order_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/testenv"
)

// TestQueryPlans checks the plans of statements on large tables. It uses a connection of the shop's pool, because the
// session settings influence the plan. Filling the tables takes most of the time, so all plans are of the same tables.
func TestQueryPlans(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.FillTables(t)
	t.Run("statements that run all the time", s.testQueryPlans)
	t.Run("placements", s.testPlacementPlans)
	t.Run("booked orders", s.testPlansWithBookedOrders)
	t.Run("no pending orders", s.testPlansWithoutPendingOrders)
	t.Run("many open orders", s.testPlacementPlansWithManyOpenOrders)
}

// testQueryPlans checks that the statements that run all the time, and those of operators, use an index.
func (s *shop) testQueryPlans(t *testing.T) {
	customer := testenv.Query[string](t, s.DB, `SELECT DISTINCT customer_id::text FROM orders`)
	due := testenv.Query[string](t, s.DB,
		`SELECT array_agg(id)::text FROM (SELECT id FROM orders WHERE status = 'pending' LIMIT 500) o`)

	for name, test := range map[string]struct {
		statement, params string
		index             string
	}{
		"list, first page": {order.ListSQL, fmt.Sprintf("'%s', NULL, '%s', 20", customer, uuid.Nil),
			"orders_customer"},
		"list, next page": {order.ListSQL, fmt.Sprintf("'%s', now() - interval '1 hour', '%s', 20", customer,
			uuid.Nil), "orders_customer"},
		"cancel due orders": {order.CancelDueSQL, fmt.Sprintf("'%s', 'worker'", due), "orders_pkey"},
		"overdue, next page": {order.PendingSQL, fmt.Sprintf("now(), '%s', -1, 500", uuid.Nil),
			"orders_pending_deadline"},
		"overdue, first page": {order.PendingSQL, fmt.Sprintf("'0001-01-01', '%s', -1, 500", uuid.Nil),
			"orders_pending_deadline"},
		"due within a minute": {order.PendingSQL, fmt.Sprintf("now(), '%s', 60000000, 500", uuid.Nil),
			"orders_pending_deadline"},
		"pending, first page": {order.PendingSQL, fmt.Sprintf("'0001-01-01', '%s', %d, 500", uuid.Nil,
			aYear.Microseconds()), "orders_pending_deadline"},
		"pending, counted":     {order.BacklogSQL, "", "orders_pending_deadline"},
		"lateness percentiles": {order.LatenessSQL, "", "orders_timed_out"},
		"where is an order":    {order.WhereSQL, fmt.Sprintf("'%s', 'order.cancel'", uuid.Nil), "orders_pkey"},
		"where are overdue":    {order.WhereSQL, "NULL, 'order.cancel'", "orders_pending_deadline"},
	} {
		t.Run(name, func(t *testing.T) {
			plan := testenv.Explain(t, s.DB, test.statement, test.params)
			ordertest.CheckPlan(t, plan, test.index)
			if test.statement == order.CancelDueSQL && quadratic.MatchString(plan) {
				t.Errorf("the plan joins the batch with its cancelled orders in a loop over their product:\n%s", plan)
			}
			if test.statement == order.PendingSQL && strings.Contains(plan, "Sort") {
				t.Errorf("the plan sorts, although the index %s is in order:\n%s", test.index, plan)
			}
		})
	}
}

// testPlansWithBookedOrders checks that the statements on what is pending or not booked read no booked order.
func (s *shop) testPlansWithBookedOrders(t *testing.T) {
	s.Exec(t,
		`UPDATE orders SET booked = true WHERE id IN (SELECT id FROM orders WHERE status <> 'pending' OFFSET 100)`)
	s.Exec(t, `VACUUM ANALYZE`)
	for name, statement := range map[string]string{
		"book":       strings.ReplaceAll(order.BookSQL, "$1", "'"+uuid.Nil.String()+"'"),
		"invariants": strings.NewReplacer("$1", "1000000", "$2", "false").Replace(order.InvariantsSQL),
	} {
		t.Run(name, func(t *testing.T) {
			plan := testenv.Explain(t, s.DB, statement, "")
			if !strings.Contains(plan, "orders_not_booked") {
				t.Errorf("the plan does not use the index orders_not_booked:\n%s", plan)
			}
			ordertest.CheckOpenPlan(t, plan)
		})
	}
}

// testPlansWithoutPendingOrders checks that a batch is read by its ids, although the statistics say that no order is
// pending. A backlog can grow before the next statistics.
func (s *shop) testPlansWithoutPendingOrders(t *testing.T) {
	ids := testenv.Query[string](t, s.DB,
		`SELECT array_agg(id)::text FROM (SELECT id FROM orders WHERE status = 'pending' LIMIT 500) o`)
	s.Exec(t, `UPDATE orders SET status = 'paid', paid_at = created_at, ended_by = 'customer' WHERE status = 'pending'`)
	s.Exec(t, `VACUUM ANALYZE orders`)
	ordertest.CheckBatchPlan(t, testenv.Explain(t, s.DB, order.CancelDueSQL, fmt.Sprintf("'%s', 'worker'", ids)))
}

// testPlacementPlans checks the statements of a batch of placements with a thousand open orders.
func (s *shop) testPlacementPlans(t *testing.T) {
	s.Exec(t,
		`INSERT INTO products SELECT gen_random_uuid(), 'product', 100, 'EUR', 0, 0 FROM generate_series(1, 5000)`)
	s.Exec(t, `UPDATE orders SET customer_id = c.id
		FROM (SELECT gen_random_uuid() AS id, n FROM generate_series(1, 20000) AS n) c
		JOIN (SELECT id, row_number() OVER () % 20000 + 1 AS n FROM orders) o ON o.n = c.n WHERE orders.id = o.id`)
	s.Exec(t, `VACUUM ANALYZE`)
	s.checkPlacementPlans(t)
}

// testPlacementPlansWithManyOpenOrders checks the statements of a batch of placements when other customers have
// 100,000 open orders: with statistics that say that no order is pending, and with those that know them.
func (s *shop) testPlacementPlansWithManyOpenOrders(t *testing.T) {
	s.Exec(t, `INSERT INTO orders (id, customer_id, total_cents, currency, created_at, expires_at)
		SELECT gen_random_uuid(), c.customer_id, 100, 'EUR', now(), now() + n * interval '1 s'
		FROM (SELECT DISTINCT customer_id FROM orders LIMIT 1000) c, generate_series(1, 100) n`)
	s.checkPlacementPlans(t)
	s.Exec(t, `ANALYZE orders`)
	s.checkPlacementPlans(t)
}

// checkPlacementPlans checks that the statements of a batch of placements find each row with an index, for one
// placement and for 200, and that they read no open orders of other customers.
func (s *shop) checkPlacementPlans(t *testing.T) {
	t.Helper()
	for _, n := range []int{1, 200} {
		array := func(element string) string {
			return "'{" + strings.Join(slices.Repeat([]string{element}, n), ",") + "}'"
		}
		ids, numbers, bytes := array(uuid.NewString()), array("1"), array(`"\\x00"`)
		for name, test := range map[string]struct {
			statement, params string
			indexes           []string
		}{
			"lock":     {order.LockSQL, ids, []string{"products_pkey"}},
			"existing": {order.ExistingSQL, ids + "," + numbers, []string{"orders_idempotency_key"}},
			"open":     {order.OpenSQL, ids, []string{"orders_open", "order_items_pkey"}},
		} {
			t.Run(fmt.Sprintf("%d placements/%s", n, name), func(t *testing.T) {
				plan := testenv.Explain(t, s.DB, test.statement, test.params)
				testenv.CheckPlan(t, plan, test.indexes, "orders", "order_items", "products")
			})
		}
		place := strings.Join([]string{ids, ids, numbers, numbers, numbers, bytes, bytes, "now()", "now()", "'k'",
			ids, ids, numbers, numbers, numbers}, ", ")
		testenv.Explain(t, s.DB, order.PlaceSQL, place) // it reads no table
	}
}

// quadratic matches a plan that compares each id of a batch with each row of another part of the statement.
var quadratic = regexp.MustCompile(`Join Filter: .*\bbatch\b`)
