package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"
)

// This file holds everything that the tests of faults, load, crashes and outages know about orders. A team that copies
// the project rewrites this file, and keeps the files harness, client, proxy, deployment, load, history, chaos, crash,
// outage, stuck and fault_*. The tests of the REST API, of the pages, of the configuration and of the demo also know
// orders.

// Names of the program.
const (
	program      = "shop"         // the binary, its directory under cmd, and its application_name in PostgreSQL
	envPrefix    = "SHOP_"        // of its environment variables
	metricPrefix = "shop_"        // of its metrics
	kind         = "order.cancel" // of the tasks
	envTimeout   = envPrefix + "ORDER_TIMEOUT"
	timeoutFlag  = "--order-timeout" // of the demo
)

// item is one thing that times out.
type item struct {
	state
	deadline    time.Time
	cancelledAt time.Time // zero unless it was cancelled, by its customer or by its timeout
}

// status is the status of an item.
type status string

const (
	absent    status = "absent" // the item was never created
	pending   status = "pending"
	expired   status = "expired" // pending past its deadline; the API and the table still show pending
	confirmed status = "confirmed"
	cancelled status = "cancelled" // by its customer
	timedOut  status = "timed out"
)

// itemSpec describes the items of the service under test: the requests of its REST API, and the SQL with which the
// tests read all items and block the service.
type itemSpec struct {
	// bodies are bodies of requests that create items. After stock, each request with the first body creates another
	// item. At least one of the other bodies needs a scarce resource, so that a load exhausts it.
	bodies []string
	// rush returns the body of the i-th of the requests that are sent at the same moment, when many customers want the
	// same resource. Each rush wants another resource, and less of it exists than is wanted. nil: no resource is scarce.
	rush func(rush, i int) string
	// units returns how many units of each resource an item with this body holds.
	units func(body string) map[string]int
	// supplies selects how many units of each resource items can hold: resource, units.
	supplies string
	// customerBounds are environment variables of a process. They set the bounds on what one customer can have at a time,
	// so low that a load reaches them. The functions and queries below know these bounds. nil: there are no bounds.
	customerBounds []string
	// exceedsBounds reports whether a customer with exactly these items would exceed a bound with one more. All are given
	// by their bodies.
	exceedsBounds func(body string, items []string) bool
	// openItems reads the ids of the customer's items from a problem that rejects a request because of a bound. They are
	// those that count towards the bound.
	openItems func(problem []byte) (ids []string, err error)
	// beyondBounds counts the items after whose creation their customer exceeded a bound.
	beyondBounds string
	// batchMetric is the histogram of the number of items that were created in one transaction.
	batchMetric string

	// create returns the request that creates an item from a body. A key that is not "" is its idempotency key.
	create func(body, key string) request
	// confirm, cancel, get and extend return the requests of an item's customer. Only visits of a second party's plans
	// extend deadlines.
	confirm, cancel, get, extend func(id string) request
	// decode reads the body of a successful response to create, confirm, cancel, get or extend.
	decode func(body []byte) (item, error)
	// available returns how many more items the first body can create.
	available func(c *client) int

	// items selects all items, with the columns key (the idempotency key), id, status (pending, confirmed, cancelled or
	// timed out), deadline, cancelled_at, held (whether the item was held at any time), extended (whether its customer
	// has extended its deadline), and batch (the batch of an item of insertBatch).
	items string
	// stock prepares the seeded database for a load. It adds so much of each resource, except the scarce one, that no
	// load exhausts it, and the resources of the rushes.
	stock string
	// restock adds a little to the scarce resource.
	restock string
	// lockPending locks all pending items.
	lockPending string
	// lockResources locks all resources for which the service's timeouts wait, in the service's order.
	lockResources string
	// lockFirst and lockSecond each lock one resource. A request with the first body must wait for lockFirst. One of the
	// other bodies needs both resources, and the service locks them in the order first, second: a test that locks them
	// in the opposite order causes deadlocks. A request with the body independent needs neither.
	lockFirst, lockSecond string
	independent           string
	// rejectTimeouts makes the database reject the timeouts of the items for which a condition on NEW.id holds. The
	// database's error contains "rejected".
	rejectTimeouts func(condition string) string
	// acceptTimeouts undoes rejectTimeouts.
	acceptTimeouts string
	// cancelStatement is a LIKE pattern of the statement that times items out.
	cancelStatement string
	// migration is a migration of a later version of the service.
	migration string

	// insertBatch inserts items with a resource of their own, and their messages into the outbox: $1 is the batch, a
	// new UUID; $2 the time until their deadline in seconds; $3 the number of items.
	insertBatch string
	// withdrawBatch changes rows so that each statement that times out items of a batch fails, and restoreBatch undoes
	// the change: $1 is the batch. restoreBatch must also use $2, the number of items in the batch.
	withdrawBatch, restoreBatch string
	// lockBatchItems and lockBatchResource lock the items of a batch, or its resource: $1 is the batch.
	lockBatchItems, lockBatchResource string
}

// rejections maps the type of a problem to the reason that the model knows.
var rejections = map[string]rejection{
	"/problems/order-paid":           rejectedConfirmed,
	"/problems/order-cancelled":      rejectedCancelled,
	"/problems/deadline-passed":      rejectedLate,
	"/problems/out-of-stock":         rejectedExhausted,
	"/problems/too-many-open-orders": rejectedBound,
	"/problems/overloaded":           rejectedOverloaded,
	"/problems/checkout-open":        rejectedHeld,
	"/problems/order-cancelling":     rejectedCancelling,
	"/problems/not-extendable":       rejectedExtension,
}

// domain is the service under test: orders that hold stock, and are cancelled unless they are paid in time.
var domain = itemSpec{
	bodies: []string{
		oneOfBeans,
		`{"items":[{"product_id":"` + mokaPot + `","quantity":1}]}`,
		`{"items":[{"product_id":"` + grinder + `","quantity":2},{"product_id":"` + beans + `","quantity":1}]}`,
		`{"items":[{"product_id":"` + beans + `","quantity":3},{"product_id":"` + mokaPot + `","quantity":1}]}`,
		`{"items":[{"product_id":"` + course + `","quantity":1}]}`,
	},
	rush: func(rush, i int) string {
		hot := fmt.Sprintf(`{"product_id":"`+hotProduct+`%012d","quantity":%d}`, rush%hotProducts, 1+i%4/3)
		if i%2 == 1 {
			hot += `,{"product_id":"` + beans + `","quantity":1}` // an order that is rejected must take none of these
		}
		return `{"items":[` + hot + `]}`
	},
	units:          unitsOf,
	supplies:       `SELECT id, available FROM products`,
	customerBounds: []string{fmt.Sprintf("SHOP_MAX_OPEN_ORDERS=%d", maxOpenOrders), fmt.Sprintf("SHOP_MAX_OPEN_UNITS=%d", maxOpenUnits)},
	exceedsBounds: func(body string, orders []string) bool {
		if len(orders) == maxOpenOrders {
			return true
		}
		units := unitsOf(body)
		for _, order := range orders {
			for product, n := range unitsOf(order) {
				units[product] += n
			}
		}
		return slices.Max(slices.Collect(maps.Values(units))) > maxOpenUnits
	},
	openItems: func(problem []byte) ([]string, error) {
		var p struct {
			OpenOrders []string `json:"open_orders"`
		}
		err := json.Unmarshal(problem, &p)
		return p.OpenOrders, err
	},
	// The time of an order's end is read before its transaction commits. So at the times in the table a customer has no
	// more open orders than the service saw.
	beyondBounds: fmt.Sprintf(`
		SELECT count(*) FROM orders o WHERE EXISTS (
			SELECT FROM orders open JOIN order_items i ON i.order_id = open.id
			WHERE open.customer_id = o.customer_id AND open.created_at <= o.created_at
			  AND coalesce(open.cancelled_at, open.paid_at, 'infinity') > o.created_at
			GROUP BY GROUPING SETS ((), (i.product_id))
			HAVING GROUPING(i.product_id) = 1 AND count(DISTINCT open.id) > %d
			    OR GROUPING(i.product_id) = 0 AND sum(i.quantity) > %d)`, maxOpenOrders, maxOpenUnits),
	batchMetric: "orders_batch_size",

	create: func(body, key string) request {
		r := request{method: http.MethodPost, path: "/api/orders", body: body}
		if key != "" {
			r.headers = []string{"Idempotency-Key: " + key}
		}
		return r
	},
	confirm: func(id string) request { return request{method: http.MethodPost, path: "/api/orders/" + id + "/pay"} },
	cancel: func(id string) request {
		return request{method: http.MethodPost, path: "/api/orders/" + id + "/cancel"}
	},
	get: func(id string) request { return request{method: http.MethodGet, path: "/api/orders/" + id} },
	extend: func(id string) request {
		return request{method: http.MethodPost, path: "/api/orders/" + id + "/extend"}
	},
	decode:    decodeOrder,
	available: func(c *client) int { return c.available(beans) },

	items: `
		SELECT idempotency_key AS key, id, expires_at AS deadline, cancelled_at, customer_id AS batch,
		       EXISTS (SELECT FROM order_events e WHERE e.order_id = orders.id AND e.type = 'held') AS held,
		       extended_at IS NOT NULL AS extended,
		       CASE WHEN cancel_reason = 'timeout' THEN 'timed out' WHEN status = 'paid' THEN 'confirmed' ELSE status END AS status
		FROM orders`,
	stock: fmt.Sprintf(`
		UPDATE products SET supply = 1000000, available = 1000000 WHERE id <> '`+course+`';
		INSERT INTO products (id, name, price_cents, currency, supply, available)
		SELECT ('`+hotProduct+`' || lpad(n::text, 12, '0'))::uuid, 'hot', 100, 'EUR', 5, 5 FROM generate_series(0, %d) AS n`, hotProducts-1),
	restock:       `UPDATE products SET supply = supply + 5, available = available + 5 WHERE id = '` + course + `'`,
	lockPending:   `SELECT FROM orders WHERE status = 'pending' ORDER BY id FOR UPDATE`,
	lockResources: `SELECT FROM products ORDER BY id FOR UPDATE`,
	lockFirst:     `SELECT FROM products WHERE id = '` + beans + `' FOR UPDATE`,
	lockSecond:    `SELECT FROM products WHERE id = '` + grinder + `' FOR UPDATE`,
	independent:   `{"items":[{"product_id":"` + mokaPot + `","quantity":1}]}`,
	rejectTimeouts: func(condition string) string {
		return `
			CREATE FUNCTION reject() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'rejected'; END $$;
			CREATE TRIGGER reject BEFORE UPDATE ON orders FOR EACH ROW
			WHEN (NEW.cancel_reason = 'timeout' AND ` + condition + `) EXECUTE FUNCTION reject()`
	},
	acceptTimeouts:  `DROP FUNCTION reject() CASCADE`,
	cancelStatement: `-- Cancels those orders of a batch%`, // the first words of cancel_due.sql
	migration: `-- +goose NO TRANSACTION
-- +goose Up
ALTER TABLE orders ADD COLUMN note text;
CREATE INDEX CONCURRENTLY orders_note ON orders (note) WHERE note IS NOT NULL;
`,

	// A batch has a customer and a product of its own, both with the batch's id.
	insertBatch: `
		WITH customer AS (
			INSERT INTO customers (id) VALUES ($1)
		), product AS (
			INSERT INTO products (id, name, price_cents, currency, supply, available) VALUES ($1, 'thing', 100, 'EUR', $3::bigint, 0)
		), placed AS (
			INSERT INTO orders (id, customer_id, total_cents, currency, created_at, expires_at)
			SELECT gen_random_uuid(), $1, 100, 'EUR', now(), now() + $2 * interval '1 s'
			FROM generate_series(1, $3::bigint)
			RETURNING id, expires_at
		), lines AS (
			INSERT INTO order_items (order_id, product_id, quantity, unit_price_cents) SELECT id, $1, 1, 100 FROM placed
		), events AS (
			INSERT INTO order_events (order_id, type, actor, at) SELECT id, 'placed', 'customer', now() FROM placed
		)
		INSERT INTO outbox (kind, task_id, due_at) SELECT '` + kind + `', id::text, expires_at FROM placed`,
	withdrawBatch:     `UPDATE products SET supply = 0, available = 0 WHERE id = $1`,
	restoreBatch:      `UPDATE products SET supply = $2 WHERE id = $1`,
	lockBatchItems:    `SELECT FROM orders WHERE customer_id = $1 FOR UPDATE`,
	lockBatchResource: `SELECT FROM products WHERE id = $1 FOR UPDATE`,
}

// Seeded products.
const (
	beans   = "01900000-0000-7000-8000-000000000001"
	mokaPot = "01900000-0000-7000-8000-000000000002"
	grinder = "01900000-0000-7000-8000-000000000003"
	course  = "01900000-0000-7000-8000-000000000005" // the scarce resource: most orders for it are rejected
)

const oneOfBeans = `{"items":[{"product_id":"` + beans + `","quantity":1}]}`

// The ids of the products that rushes want begin with hotProduct and end with a number of 12 digits below hotProducts.
const (
	hotProduct  = "01900000-0000-7000-9000-"
	hotProducts = 200
)

// The bounds on what a customer has not paid. A customer reaches the second one with two orders of three units.
const (
	maxOpenOrders = 3
	maxOpenUnits  = 5
)

// unitsOf returns how many units of each product an order with this body has.
func unitsOf(body string) map[string]int {
	var order struct {
		Items []struct {
			ProductID string `json:"product_id"`
			Quantity  int
		}
	}
	if err := json.Unmarshal([]byte(body), &order); err != nil {
		panic(err)
	}
	units := map[string]int{}
	for _, line := range order.Items {
		units[line.ProductID] += line.Quantity
	}
	return units
}

// order is an order as the REST API shows it.
type order struct {
	ID                string
	Status            string
	CancelReason      string    `json:"cancel_reason"`
	ExpiresAt         time.Time `json:"expires_at"`
	CancelledAt       time.Time `json:"cancelled_at"`
	HoldUntil         time.Time `json:"hold_until"`
	CancelRequestedAt time.Time `json:"cancel_requested_at"`
	ExtendedAt        time.Time `json:"extended_at"`
}

func decodeOrder(body []byte) (item, error) {
	var o order
	if err := json.Unmarshal(body, &o); err != nil {
		return item{}, err
	}
	s := state{status: status(o.Status), id: o.ID, extended: !o.ExtendedAt.IsZero()}
	switch {
	case o.CancelReason == "timeout":
		s.status = timedOut
	case o.Status == "paid":
		s.status = confirmed
	case s.status == pending:
		s.cancelling = !o.CancelRequestedAt.IsZero()
		if !o.HoldUntil.IsZero() {
			s.hold = held
		}
	}
	return item{s, o.ExpiresAt, o.CancelledAt}, nil
}

// available returns how many of a product are available.
func (c *client) available(product string) int {
	c.t.Helper()
	list := decode[struct {
		Items []struct {
			ID        string
			Available int
		}
	}](c.t, c.get("/api/products"))
	for _, p := range list.Items {
		if p.ID == product {
			return p.Available
		}
	}
	c.t.Fatalf("GET /api/products: no product %s", product)
	return 0
}
