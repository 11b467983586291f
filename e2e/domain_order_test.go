package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"example.com/shop/internal/testenv/parttest"
)

// This file has what the fault tests know about orders.

// timeoutFlag is the option of the demo that sets the time to pay an order.
const timeoutFlag = "--order-timeout"

// orders is the program cmd/shop. Orders reserve stock, and are cancelled unless they are paid in time.
var orders = newOrders("..")

func newOrders(module string) *service {
	return &service{
		program: "shop",
		module:  module, source: "cmd/shop",
		migrate: []string{"migrate", "--seed"},
		kind:    "order.cancel",
		timeout: "ORDER_TIMEOUT",
		keep:    "KEEP",

		contract:   sync.OnceValues(func() (*parttest.Contract, error) { return parttest.LoadContract(module) }),
		signUp:     "/api/customers",
		collection: "/api/orders",
		actions:    map[operation]string{confirm: "pay", cancel: "cancel", extend: "extend"},
		create: func(body, key string) request {
			r := request{method: http.MethodPost, path: "/api/orders", body: body}
			if key != "" {
				r.headers = []string{"Idempotency-Key: " + key}
			}
			return r
		},
		keyed: true,
		bodies: []string{
			oneOfBeans,
			`{"items":[{"product_id":"` + mokaPot + `","quantity":1}]}`,
			`{"items":[{"product_id":"` + grinder + `","quantity":2},{"product_id":"` + beans + `","quantity":1}]}`,
			`{"items":[{"product_id":"` + beans + `","quantity":3},{"product_id":"` + mokaPot + `","quantity":1}]}`,
			`{"items":[{"product_id":"` + course + `","quantity":1}]}`,
		},
		decode: decodeOrder,
		rejections: map[string]rejection{
			"/problems/order-paid":           rejectedConfirmed,
			"/problems/order-cancelled":      rejectedCancelled,
			"/problems/deadline-passed":      rejectedLate,
			"/problems/out-of-stock":         rejectedExhausted,
			"/problems/too-many-open-orders": rejectedBound,
			"/problems/overloaded":           rejectedOverloaded,
			"/problems/checkout-open":        rejectedHeld,
			"/problems/order-cancelling":     rejectedCancelling,
			"/problems/not-extendable":       rejectedExtension,
		},
		batchMetric: "orders_batch_size",

		table: "orders",
		batch: "customer_id",
		items: `
		SELECT idempotency_key AS key, id, expires_at AS deadline, cancelled_at, customer_id AS batch,
		       EXISTS (SELECT FROM order_events e WHERE e.order_id = orders.id AND e.type = 'held') AS held,
		       extended_at IS NOT NULL AS extended,
		       CASE WHEN cancel_reason = 'timeout' THEN 'timed out' WHEN status = 'paid' THEN 'confirmed' ELSE status END AS status
		FROM orders`,
		timedOut:         `NEW.cancel_reason = 'timeout'`,
		timeoutStatement: `-- Cancels those orders of a batch%`, // the first words of cancel_due.sql
		blockTimeouts:    `SELECT FROM products ORDER BY id FOR UPDATE`,
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
		)
		INSERT INTO outbox (kind, task_id, due_at) SELECT 'order.cancel', id::text, expires_at FROM placed`,

		resources: &resources{
			rush: func(rush, i int) string {
				hot := fmt.Sprintf(`{"product_id":"`+hotProduct+`%012d","quantity":%d}`, rush%hotProducts, 1+i%4/3)
				if i%2 == 1 {
					hot += `,{"product_id":"` + beans + `","quantity":1}` // an order that is rejected must take none of these
				}
				return `{"items":[` + hot + `]}`
			},
			units:     unitsOf,
			supplies:  `SELECT id, available FROM products`,
			list:      "/api/products",
			available: func(list []byte) int { return availableOf(list, beans) },
			stock: fmt.Sprintf(`
		UPDATE products SET supply = 1000000, available = 1000000 WHERE id <> '`+course+`';
		INSERT INTO products (id, name, price_cents, currency, supply, available)
		SELECT ('`+hotProduct+`' || lpad(n::text, 12, '0'))::uuid, 'hot', 100, 'EUR', 5, 5 FROM generate_series(0, %d) AS n`, hotProducts-1),
			restock:       `UPDATE products SET supply = supply + 5, available = available + 5 WHERE id = '` + course + `'`,
			lockFirst:     `SELECT FROM products WHERE id = '` + beans + `' FOR UPDATE`,
			lockSecond:    `SELECT FROM products WHERE id = '` + grinder + `' FOR UPDATE`,
			independent:   `{"items":[{"product_id":"` + mokaPot + `","quantity":1}]}`,
			lockBatch:     `SELECT FROM products WHERE id = $1 FOR UPDATE`,
			withdrawBatch: `UPDATE products SET supply = 0, available = 0 WHERE id = $1`,
			restoreBatch:  `UPDATE products SET supply = $2 WHERE id = $1`,
		},
		bounds: &customerBounds{
			env: []string{fmt.Sprintf("SHOP_MAX_OPEN_ORDERS=%d", maxOpenOrders), fmt.Sprintf("SHOP_MAX_OPEN_UNITS=%d", maxOpenUnits)},
			exceeds: func(body string, orders []string) bool {
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
			open: func(problem []byte) ([]string, error) {
				var p struct {
					OpenOrders []string `json:"open_orders"`
				}
				err := json.Unmarshal(problem, &p)
				return p.OpenOrders, err
			},
			// The time of an order's end is read before its transaction commits. So at the times in the table a customer has no
			// more open orders than the service saw.
			exceeded: fmt.Sprintf(`
		SELECT count(*) FROM orders o WHERE EXISTS (
			SELECT FROM orders open JOIN order_items i ON i.order_id = open.id
			WHERE open.customer_id = o.customer_id AND open.created_at <= o.created_at
			  AND coalesce(open.cancelled_at, open.paid_at, 'infinity') > o.created_at
			GROUP BY GROUPING SETS ((), (i.product_id))
			HAVING GROUPING(i.product_id) = 1 AND count(DISTINCT open.id) > %d
			    OR GROUPING(i.product_id) = 0 AND sum(i.quantity) > %d)`, maxOpenOrders, maxOpenUnits),
		},
	}
}

// needsOrders skips a test of what only the program cmd/shop has.
func needsOrders(t testing.TB) {
	t.Helper()
}

// anyShop returns any site of orders.
func anyShop(t *testing.T) *process {
	t.Helper()
	needsOrders(t)
	return orders.anySite(t)
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
	return availableOf(c.get("/api/products").body, product)
}

// availableOf reads from a list of products how many of a product are available.
func availableOf(list []byte, product string) int {
	var products struct {
		Items []struct {
			ID        string
			Available int
		}
	}
	if err := json.Unmarshal(list, &products); err != nil {
		panic(err)
	}
	for _, p := range products.Items {
		if p.ID == product {
			return p.Available
		}
	}
	panic("the list has no product " + product)
}
