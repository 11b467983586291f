package order_test

import (
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/testenv"
)

// TestSchemaRejectsInvalidRows writes rows that break the rules of an order's life. The constraints must reject them,
// so that a bug in the code cannot store such rows.
func TestSchemaRejectsInvalidRows(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer, product := s.Customer(t), s.Product(t, 10)
	for name, test := range map[string]struct {
		statement  string // $1: the id of a pending order
		constraint string
	}{
		"a payment at the deadline": {`UPDATE orders
			SET status = 'paid', ended_by = 'worker', paid_at = expires_at WHERE id = $1`, "orders_paid_at"},
		"a timeout before the deadline": {`UPDATE orders
			SET status = 'cancelled', ended_by = 'worker', cancel_reason = 'timeout', cancelled_at = expires_at - interval '1 us' WHERE id = $1`, "orders_cancelled_at"},
		"a customer's cancellation at the deadline": {`UPDATE orders
			SET status = 'cancelled', ended_by = 'customer', cancel_reason = 'customer', cancelled_at = expires_at
			WHERE id = $1`, "orders_cancelled_at"},
		"a held payment at the end of the hold": {`UPDATE orders
			SET hold_until = expires_at + interval '1 h', status = 'paid', ended_by = 'worker', paid_at = expires_at + interval '1 h' WHERE id = $1`, "orders_paid_at"},
		"a timeout before the end of the hold": {`UPDATE orders
			SET hold_until = expires_at + interval '1 h', status = 'cancelled', ended_by = 'worker', cancel_reason = 'timeout', cancelled_at = expires_at WHERE id = $1`, "orders_cancelled_at"},
		"a held order that its customer pays at once": {`UPDATE orders
			SET hold_until = expires_at + interval '1 h', status = 'paid', ended_by = 'customer', paid_at = created_at WHERE id = $1`, "orders_held"},
		"a held order that its customer cancels": {`UPDATE orders
			SET hold_until = expires_at + interval '1 h', status = 'cancelled', ended_by = 'customer', cancel_reason = 'customer', cancelled_at = created_at WHERE id = $1`, "orders_held"},
		"a provider's payment of an order that is not held": {`UPDATE orders
			SET status = 'paid', ended_by = 'provider', paid_at = created_at WHERE id = $1`, "orders_held"},
		"a hold that ends at the deadline": {`UPDATE orders
			SET hold_until = expires_at WHERE id = $1`, "orders_hold_until"},
		"an unknown event": {`INSERT INTO order_events (order_id, type, actor, at) VALUES ($1, 'lost', 'worker', now())`, "order_events_type"},
		"an unknown actor": {`INSERT INTO order_events (order_id, type, actor, at) VALUES ($1, 'held', 'cat', now())`, "order_events_actor"},
		"an unknown reason": {`UPDATE orders
			SET status = 'cancelled', ended_by = 'worker', cancel_reason = 'mood', cancelled_at = expires_at
			WHERE id = $1`, "orders_cancel_reason"},
		"both paid and cancelled": {`UPDATE orders
			SET status = 'cancelled', ended_by = 'worker', cancel_reason = 'customer', paid_at = created_at - interval '1 us', cancelled_at = created_at WHERE id = $1`, "orders_status"},
		"paid without a time": {`UPDATE orders
			SET status = 'paid', ended_by = 'worker' WHERE id = $1`, "orders_status"},
		"pending with a payment": {`UPDATE orders
			SET paid_at = created_at WHERE id = $1`, "orders_status"},
		"cancelled without a reason": {`UPDATE orders
			SET status = 'cancelled', ended_by = 'worker', cancelled_at = expires_at WHERE id = $1`, "orders_status"},
		"an unknown status": {`UPDATE orders
			SET status = 'lost', ended_by = 'worker' WHERE id = $1`, "orders_status"},
		"a deadline at the placement": {`UPDATE orders
			SET expires_at = created_at WHERE id = $1`, "orders_expires_at"},
		"an idempotency key without a fingerprint": {`UPDATE orders
			SET idempotency_key = 'k' WHERE id = $1`, "orders_idempotency"},
		"an idempotency key used twice": {`INSERT INTO orders (id, customer_id, total_cents, currency, idempotency_key, fingerprint, created_at, expires_at) SELECT gen_random_uuid(), customer_id, 1, 'EUR', 'k', '', created_at, expires_at FROM orders CROSS JOIN generate_series(1, 2) WHERE id = $1`, "orders_idempotency_key"},
		"an end of a pending order": {`UPDATE orders
			SET ended_by = 'worker' WHERE id = $1`, "orders_ended_by"},
		"an end by nobody": {`UPDATE orders
			SET status = 'paid', paid_at = created_at WHERE id = $1`, "orders_ended_by"},
		"an end by an operator": {`UPDATE orders
			SET status = 'cancelled', cancel_reason = 'timeout', cancelled_at = expires_at, ended_by = 'operator'
			WHERE id = $1`, "orders_ended_by"},
		"a payment after the deadline of a hold that was cleared": {`UPDATE orders
			SET status = 'paid', ended_by = 'customer', hold_until = NULL, paid_at = expires_at
			WHERE id = $1`, "orders_paid_at"},
		"a held payment that clears its hold after the deadline": {`UPDATE orders
			SET status = 'paid', ended_by = 'customer', hold_until = NULL, paid_at = expires_at + interval '1 s'
			WHERE id = $1`, "orders_paid_at"},
		"an earlier deadline after the payment": {`UPDATE orders
			SET status = 'paid', ended_by = 'customer', paid_at = expires_at - interval '1 s', expires_at = expires_at - interval '1 min' WHERE id = $1`, "orders_paid_at"},
		"a later deadline beyond the end of the hold": {`UPDATE orders
			SET hold_until = expires_at + interval '1 min', expires_at = expires_at + interval '2 min'
			WHERE id = $1`, "orders_hold_until"},
		"a hold that is released after the timeout": {`UPDATE orders
			SET status = 'cancelled', cancel_reason = 'timeout', ended_by = 'worker', cancelled_at = expires_at - interval '1 s', hold_until = NULL WHERE id = $1`, "orders_cancelled_at"},
		"booked while it is pending": {`UPDATE orders SET booked = true
			WHERE id = $1`, "orders_booked"},
		"a negative number of extensions": {`UPDATE orders
			SET extensions = -1 WHERE id = $1`, "orders_extensions_check"},
		"a moved deadline without the new one":             {`INSERT INTO order_events (order_id, type, actor, at) VALUES ($1, 'rescheduled', 'customer', now())`, "order_events_rescheduled"},
		"a deadline moved by an operator without a reason": {`INSERT INTO order_events (order_id, type, actor, at, deadline) VALUES ($1, 'rescheduled', 'operator', now(), now())`, "order_events_rescheduled"},
		"a terminal event":                                 {`INSERT INTO order_events (order_id, type, actor, at) VALUES ($1, 'paid', 'worker', now())`, "order_events_type"},
		"an end by an unknown actor": {`UPDATE orders
			SET status = 'paid', paid_at = created_at, ended_by = 'cat' WHERE id = $1`, "orders_ended_by"},
		"more stock than supply": {`UPDATE products
			SET available = supply + 1 WHERE id = (SELECT product_id FROM order_items
			WHERE order_id = $1)`, "products_check"},
		"negative stock": {`UPDATE products
			SET available = -1 WHERE id = (SELECT product_id FROM order_items WHERE order_id = $1)`, "products_check"},
		"an item without a quantity": {`UPDATE order_items
			SET quantity = 0 WHERE order_id = $1`, "order_items_quantity_check"},
		"an order that costs nothing": {`UPDATE orders
			SET total_cents = 0 WHERE id = $1`, "orders_total_cents_check"},
	} {
		t.Run(name, func(t *testing.T) {
			id := s.MustPlace(t, customer, line(product, 1)).ID
			_, err := s.DB.ExecContext(t.Context(), test.statement, id)
			pg, ok := errors.AsType[*pgconn.PgError](err)
			if !ok || pg.ConstraintName != test.constraint {
				t.Errorf("the error is %v, want a violation of %s", err, test.constraint)
			}
			if _, err := s.Cancel(t.Context(), customer, id); err != nil {
				t.Errorf("Cancel returns %v afterwards, want no error", err)
			}
		})
	}
	s.CheckInvariants(t, 0)
}

// TestInvariantsFindViolations drops the constraints and writes rows that violate each invariant. Those of an ended
// order are found before it is booked and, by a full check, afterwards.
func TestInvariantsFindViolations(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer, product := s.Customer(t), s.Product(t, 100)
	testenv.DropChecks(t, s.DB)
	const (
		ofOrder    = ` WHERE id = (SELECT product_id FROM order_items WHERE order_id = $1)`
		releaseSQL = `UPDATE products SET available = supply` + ofOrder
	)
	for name, test := range map[string]struct {
		bound      time.Duration
		statements []string    // $1: the id of a pending order
		violated   map[int]int // by invariant
	}{
		"no violation": {0, nil, nil},
		"stock lost": {0,
			[]string{`UPDATE products SET available = available - 1 WHERE id = (SELECT product_id FROM order_items
				WHERE order_id = $1)`}, map[int]int{1: 1}},
		"stock never reserved": {0, []string{`DELETE FROM order_items WHERE order_id = $1`},
			map[int]int{1: 1}},
		"both paid and cancelled": {0,
			[]string{`UPDATE orders
				SET status = 'paid', paid_at = created_at, cancelled_at = created_at, ended_by = 'worker'
				WHERE id = $1`}, map[int]int{2: 1, 4: 1}},
		"ended by nobody": {0,
			[]string{`UPDATE orders SET status = 'paid', paid_at = created_at WHERE id = $1`}, map[int]int{2: 1}},
		"pending too long":         {29 * time.Minute, []string{ordertest.ExpireSQL}, map[int]int{3: 1}},
		"pending within the bound": {31 * time.Minute, []string{ordertest.ExpireSQL}, nil},
		"paid too late": {0,
			[]string{`UPDATE orders SET status = 'paid', paid_at = expires_at, ended_by = 'worker'
				WHERE id = $1`}, map[int]int{4: 1}},
		"held past the deadline": {0,
			[]string{`UPDATE orders SET hold_until = expires_at + interval '1 hour' WHERE id = $1`,
				ordertest.ExpireSQL}, nil},
		"pending after its hold": {0,
			[]string{`UPDATE orders SET hold_until = expires_at + interval '1 minute' WHERE id = $1`,
				ordertest.ExpireSQL}, map[int]int{3: 1}},
		"paid during the hold": {0,
			[]string{`UPDATE orders
				SET hold_until = expires_at + interval '1 hour', status = 'paid', paid_at = expires_at, ended_by = 'worker' WHERE id = $1`}, nil},
		"paid at the end of the hold": {0,
			[]string{`UPDATE orders
				SET hold_until = expires_at + interval '1 hour', status = 'paid', paid_at = expires_at + interval '1 hour', ended_by = 'worker' WHERE id = $1`}, map[int]int{4: 1}},
		"timed out too early": {0,
			[]string{`UPDATE orders
				SET status = 'cancelled', cancel_reason = 'timeout', cancelled_at = created_at, ended_by = 'worker'
				WHERE id = $1`}, map[int]int{1: 1, 4: 1}},
		"a negative number of available units": {0,
			[]string{`UPDATE order_items SET quantity = 101 WHERE order_id = $1`,
				`UPDATE products SET available = -1` + ofOrder}, map[int]int{1: 1}},
		"more available units than the supply": {0,
			[]string{`UPDATE order_items SET quantity = -1 WHERE order_id = $1`,
				`UPDATE products SET available = 101` + ofOrder}, map[int]int{1: 1}},
		"pending with a payment": {0,
			[]string{`UPDATE orders SET paid_at = created_at WHERE id = $1`}, map[int]int{2: 1}},
		"pending with a cancellation": {0,
			[]string{`UPDATE orders SET cancelled_at = expires_at WHERE id = $1`}, map[int]int{2: 1}},
		"pending with a reason": {0,
			[]string{`UPDATE orders SET cancel_reason = 'timeout' WHERE id = $1`}, map[int]int{2: 1}},
		"pending with an actor": {0,
			[]string{`UPDATE orders SET ended_by = 'worker' WHERE id = $1`}, map[int]int{2: 1}},
		"pending and booked": {0,
			[]string{`UPDATE orders SET booked = true WHERE id = $1`}, map[int]int{2: 1}},
		"paid without a time": {0,
			[]string{`UPDATE orders SET status = 'paid', ended_by = 'customer' WHERE id = $1`}, map[int]int{2: 1}},
		"paid for a reason": {0,
			[]string{`UPDATE orders
				SET status = 'paid', paid_at = created_at, cancel_reason = 'customer', ended_by = 'customer'
				WHERE id = $1`}, map[int]int{2: 1}},
		"ended by an unknown actor": {0,
			[]string{`UPDATE orders SET status = 'paid', paid_at = created_at, ended_by = 'cat' WHERE id = $1`},
			map[int]int{2: 1}},
		"an unknown status": {0,
			[]string{releaseSQL, `UPDATE orders SET status = 'lost', ended_by = 'worker' WHERE id = $1`},
			map[int]int{2: 1}},
		"cancelled after a payment": {0,
			[]string{releaseSQL, `UPDATE orders
				SET status = 'cancelled', cancel_reason = 'timeout', cancelled_at = expires_at, ended_by = 'worker',
				paid_at = created_at WHERE id = $1`}, map[int]int{2: 1}},
		"cancelled without a time": {0,
			[]string{releaseSQL, `UPDATE orders
				SET status = 'cancelled', cancel_reason = 'timeout', ended_by = 'worker' WHERE id = $1`},
			map[int]int{2: 1}},
		"cancelled without a reason": {0,
			[]string{releaseSQL, `UPDATE orders
				SET status = 'cancelled', cancelled_at = expires_at, ended_by = 'worker' WHERE id = $1`},
			map[int]int{2: 1}},
		"cancelled for an unknown reason": {0,
			[]string{releaseSQL, `UPDATE orders
				SET status = 'cancelled', cancel_reason = 'mood', cancelled_at = expires_at, ended_by = 'worker'
				WHERE id = $1`}, map[int]int{2: 1}},
		"cancelled by its customer at the deadline": {0,
			[]string{releaseSQL, `UPDATE orders
				SET status = 'cancelled', cancel_reason = 'customer', cancelled_at = expires_at, ended_by = 'customer'
				WHERE id = $1`}, map[int]int{4: 1}},
		"cancelled by its customer before the deadline": {0,
			[]string{releaseSQL, `UPDATE orders
				SET status = 'cancelled', cancel_reason = 'customer', cancelled_at = created_at, ended_by = 'customer'
				WHERE id = $1`}, nil},
		"timed out at the end of a hold before the deadline": {0,
			[]string{releaseSQL, `UPDATE orders
				SET status = 'cancelled', cancel_reason = 'timeout', cancelled_at = created_at, ended_by = 'worker',
				hold_until = created_at WHERE id = $1`}, map[int]int{4: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			id := s.MustPlace(t, customer, line(product, 1)).ID
			for _, statement := range test.statements {
				s.Exec(t, statement, id)
			}
			checkViolations(t, s.Store, true, test.bound, id, test.violated)
			checkViolations(t, s.Store, false, test.bound, id, test.violated)
			_, err := s.Store.Book(t.Context())
			testenv.Must(t, err)
			checkViolations(t, s.Store, true, test.bound, id, test.violated)
			s.Exec(t, `DELETE FROM orders`)
			s.Exec(t, `DELETE FROM stock_books`)
			s.Exec(t, `UPDATE products SET available = supply`)
		})
	}
}

// checkViolations compares the number of violations of each invariant. Their subject must be the order, except for
// that of the first invariant.
func checkViolations(t *testing.T, store *order.Store, full bool, bound time.Duration, id uuid.UUID, want map[int]int) {
	t.Helper()
	violations, err := store.Invariants(t.Context(), bound, full)
	testenv.Must(t, err)
	got := map[int]int{}
	for _, v := range violations {
		got[v.Invariant]++
		if want := "order " + id.String(); v.Invariant > 1 && v.Subject != want {
			t.Errorf("subject of the violation of invariant %d is %q, want %q", v.Invariant, v.Subject, want)
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("the numbers of violations by invariant are %v, want %v: %v", got, want, violations)
	}
}

// TestSeedProducts checks that seeding again succeeds and does not reset the stock.
func TestSeedProducts(t *testing.T) {
	s := newShop(t)
	for range 2 {
		if err := s.Store.SeedProducts(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	products, err := s.Products(t.Context())
	if err != nil || len(products) < 3 {
		t.Fatalf("Products returns %d products, %v; want at least 3", len(products), err)
	}
	o := s.MustPlace(t, s.Customer(t), line(products[0].ID, 1))
	if err := s.Store.SeedProducts(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := s.Available(t, products[0].ID); got != products[0].Available-1 || o.Currency != "EUR" {
		t.Errorf("%d available in %s, want %d in EUR", got, o.Currency, products[0].Available-1)
	}
	s.CheckInvariants(t, 0)
}
