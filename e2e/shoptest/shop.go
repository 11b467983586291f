// Package shoptest describes the program cmd/shop for the fault tests of package faulttest, and knows its products.
package shoptest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"example.com/shop/internal/faulttest"
	"example.com/shop/internal/testenv"
	"example.com/shop/internal/testenv/parttest"
)

// Service returns the shop as a service under test. Orders are its rows: they reserve stock, and time out unless they
// are paid. The directory of the module is that seen from the package of the tests.
func Service(module string) *faulttest.Service {
	return &faulttest.Service{
		Program: "shop",
		Module:  module, Source: "cmd/shop",
		Migrate: []string{"migrate", "--seed"},
		Kind:    "order.cancel",
		Timeout: "ORDER_TIMEOUT",
		Extend:  []string{"ORDER_EXTENSION", "MAX_EXTENSIONS"},

		Contract:   sync.OnceValues(func() (*parttest.Contract, error) { return parttest.LoadContract(module) }),
		SignUp:     "/api/customers",
		Collection: "/api/orders",
		Actions: map[faulttest.Operation]func(row, secret string) faulttest.Request{
			faulttest.Confirm: faulttest.Post("pay"),
			faulttest.Cancel:  faulttest.Post("cancel"),
			faulttest.Extend:  faulttest.Post("extend"),
		},
		Create: func(body, key string) faulttest.Request {
			r := faulttest.Request{Method: http.MethodPost, Path: "/api/orders", Body: body}
			if key != "" {
				r.Headers = []string{"Idempotency-Key: " + key}
			}
			return r
		},
		Keyed: true,
		Bodies: []string{
			OneOfBeans,
			`{"items":[{"product_id":"` + Beans + `","quantity":2}]}`,
			`{"items":[{"product_id":"` + MokaPot + `","quantity":1}]}`,
			twoGrinders,
			`{"items":[{"product_id":"` + Beans + `","quantity":3},{"product_id":"` + MokaPot + `","quantity":1}]}`,
			`{"items":[{"product_id":"` + Course + `","quantity":1}]}`,
		},
		Decode: decodeOrder,
		Rejections: map[string]faulttest.Rejection{
			"/problems/order-paid":             faulttest.RejectedConfirmed,
			"/problems/order-cancelled":        faulttest.RejectedCancelled,
			"/problems/deadline-passed":        faulttest.RejectedLate,
			"/problems/out-of-stock":           faulttest.RejectedExhausted,
			"/problems/too-many-open-orders":   faulttest.RejectedBound,
			"/problems/overloaded":             faulttest.RejectedOverloaded,
			"/problems/checkout-open":          faulttest.RejectedHeld,
			"/problems/not-extendable":         faulttest.RejectedExtension,
			"/problems/idempotency-key-reused": faulttest.RejectedReuse,
		},
		BatchMetric: "orders_batch_size",

		Table: "orders",
		Rows: `
		SELECT idempotency_key AS key, id, expires_at AS deadline, due_at AS due,
		       coalesce(paid_at, cancelled_at) AS ended_at,
		       EXISTS (SELECT FROM order_events e WHERE e.order_id = orders.id AND e.type = 'held') AS held,
		       extensions,
		       CASE WHEN cancel_reason = 'timeout' THEN 'timed out' WHEN status = 'paid' THEN 'confirmed'
			ELSE status END AS status
		FROM orders`,
		// A batch has a product of its own, whose id, as that of its customer, is the batch's.
		InsertBatch: `
		WITH product AS (
			INSERT INTO products (id, name, price_cents, currency, supply, available)
				VALUES ($1, 'thing', 100, 'EUR', $3::bigint, 0)
		), placed AS (
			INSERT INTO orders (id, customer_id, total_cents, currency, created_at, expires_at)
			SELECT gen_random_uuid(), $1, 100, 'EUR', now(), now() + $2 * interval '1 s'
			FROM generate_series(1, $3::bigint)
			RETURNING id
		), lines AS (
			INSERT INTO order_items (order_id, product_id, quantity, unit_price_cents, name)
				SELECT id, $1, 1, 100, 'a product' FROM placed
		)
		SELECT id FROM placed`,

		Shared: &faulttest.SharedRows{
			Rush: func(rush, i int) string {
				hot := fmt.Sprintf(`{"product_id":"`+hotProduct+`%012d","quantity":%d}`, rush, 1+i%4/3)
				if i%2 == 1 {
					// an order that is rejected must take none of these
					hot += `,{"product_id":"` + Beans + `","quantity":1}`
				}
				return `{"items":[` + hot + `]}`
			},
			Rushes:   hotProducts,
			Units:    unitsOf,
			Supplies: `SELECT id, available FROM products`,
			Stock: fmt.Sprintf(`
		UPDATE products SET supply = 1000000, available = 1000000 WHERE id <> '`+Course+`';
		INSERT INTO products (id, name, price_cents, currency, supply, available)
		SELECT ('`+hotProduct+`' || lpad(n::text, 12, '0'))::uuid, 'hot', 100, 'EUR', 5, 5
			FROM generate_series(0, %d) AS n`, hotProducts-1),
			Lock: `SELECT FROM products WHERE id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE`,
		},
		Bounds: &faulttest.CustomerBounds{
			Env: []string{fmt.Sprintf("SHOP_MAX_OPEN_ORDERS=%d", maxOpenOrders),
				fmt.Sprintf("SHOP_MAX_OPEN_UNITS=%d", maxOpenUnits)},
			// Three of the first one reach the bound on orders, and two of the second one that on units.
			Rush: []string{OneOfBeans, twoGrinders},
			Exceeds: func(body string, orders []string) bool {
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
			Open: func(problem []byte) ([]string, error) {
				var p struct {
					OpenOrders []string `json:"open_orders"`
				}
				err := json.Unmarshal(problem, &p)
				return p.OpenOrders, err
			},
			// The time of an order's end is read before its transaction commits. So at the times in the table a
			// customer has no more open orders than the service saw. An order counts at most for the shortest time to
			// pay of all orders: the service may not see an extension or a hold that commits later.
			Exceeded: fmt.Sprintf(`
		SELECT count(*) FROM orders o WHERE EXISTS (
			SELECT FROM orders open JOIN order_items i ON i.order_id = open.id
			WHERE open.customer_id = o.customer_id AND open.created_at <= o.created_at
			  AND coalesce(open.cancelled_at, open.paid_at, 'infinity') > o.created_at
			  AND least(open.due_at, open.created_at + (SELECT min(expires_at - created_at) FROM orders)) > o.created_at
			GROUP BY GROUPING SETS ((), (i.product_id))
			HAVING GROUPING(i.product_id) = 1 AND count(DISTINCT open.id) > %d
			    OR GROUPING(i.product_id) = 0 AND sum(i.quantity) > %d)`, maxOpenOrders, maxOpenUnits),
		},
	}
}

// The ids of seeded products.
const (
	Beans   = "01900000-0000-7000-8000-000000000001"
	MokaPot = "01900000-0000-7000-8000-000000000002"
	Grinder = "01900000-0000-7000-8000-000000000003"
	Course  = "01900000-0000-7000-8000-000000000005" // the scarce shared row: most orders for it are rejected
)

// OneOfBeans is the body of a request that orders one unit of [Beans].
const OneOfBeans = `{"items":[{"product_id":"` + Beans + `","quantity":1}]}`

// twoGrinders is the body of a request that orders two units of a product, and one of another.
const twoGrinders = `{"items":[{"product_id":"` + Grinder + `","quantity":2},{"product_id":"` + Beans + `","quantity":1}]}`

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

// Order is an order as the REST API shows it.
type Order struct {
	ID           string
	Status       string
	CancelReason string    `json:"cancel_reason"`
	ExpiresAt    time.Time `json:"expires_at"`
	CancelledAt  time.Time `json:"cancelled_at"`
	HoldUntil    time.Time `json:"hold_until"`
	Extensions   int
}

func decodeOrder(body []byte) (faulttest.Row, error) {
	var o Order
	if err := json.Unmarshal(body, &o); err != nil {
		return faulttest.Row{}, err
	}
	s := faulttest.State{Status: faulttest.Status(o.Status), ID: o.ID, Extensions: o.Extensions}
	switch {
	case o.CancelReason == "timeout":
		s.Status = faulttest.TimedOut
	case o.Status == "paid":
		s.Status = faulttest.Confirmed
	case s.Status == faulttest.Pending:
		if !o.HoldUntil.IsZero() {
			s.Hold = faulttest.Held
		}
	}
	return faulttest.Row{State: s, Deadline: o.ExpiresAt, CancelledAt: o.CancelledAt}, nil
}

// Available returns how many of a product are available to a customer.
func Available(c *faulttest.Client, product string) int {
	c.T.Helper()
	var products struct {
		Items []struct {
			ID        string
			Available int
		}
	}
	testenv.Must(c.T, json.Unmarshal(c.Get("/api/products").Body, &products))
	for _, p := range products.Items {
		if p.ID == product {
			return p.Available
		}
	}
	c.T.Fatal("the list has no product " + product)
	return 0
}
