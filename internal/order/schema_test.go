package order_test

import (
	"errors"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"example.com/shop/internal/order"
	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/testenv"
)

// The beginnings of changes of a pending order.
const (
	held          = `hold_until = expires_at + interval '1 h', `
	paid          = `status = 'paid', ended_by = 'customer', `
	paidElsewhere = `status = 'paid', ended_by = 'provider', `
	timedOut      = `status = 'cancelled', ended_by = 'worker', cancel_reason = 'timeout', `
	cancelled     = `status = 'cancelled', ended_by = 'customer', cancel_reason = 'customer', `
)

// TestSchemaRejectsInvalidRows writes rows that break the rules of an order's life. The constraints must reject them,
// so that a bug in the code cannot store such rows.
func TestSchemaRejectsInvalidRows(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	customer, product := s.Customer(t), s.Product(t, 10)
	for _, test := range []struct {
		name, constraint string
		change           string // of a pending order, or a statement with its id as $1
	}{
		{"a payment at the deadline", "orders_paid_at", paid + `paid_at = expires_at`},
		{"a timeout before the deadline", "orders_cancelled_at",
			timedOut + `cancelled_at = expires_at - interval '1 us'`},
		{"a customer's cancellation at the deadline", "orders_cancelled_at",
			cancelled + `cancelled_at = expires_at`},
		{"a held payment at the end of the hold", "orders_paid_at",
			held + paidElsewhere + `paid_at = expires_at + interval '1 h'`},
		{"a timeout before the end of the hold", "orders_cancelled_at",
			held + timedOut + `cancelled_at = expires_at`},
		{"a held order that its customer pays at once", "orders_held", held + paid + `paid_at = created_at`},
		{"a held order that its customer cancels", "orders_held", held + cancelled + `cancelled_at = created_at`},
		{"a provider's payment of an order that is not held", "orders_held", paidElsewhere + `paid_at = created_at`},
		{"a hold that ends at the deadline", "orders_hold_until", `hold_until = expires_at`},
		{"an unknown event", "order_events_type",
			`INSERT INTO order_events (order_id, type, actor, at) VALUES ($1, 'lost', 'worker', now())`},
		{"an unknown actor", "order_events_actor",
			`INSERT INTO order_events (order_id, type, actor, at) VALUES ($1, 'held', 'cat', now())`},
		{"an unknown reason", "orders_cancel_reason",
			`status = 'cancelled', ended_by = 'worker', cancel_reason = 'mood', cancelled_at = expires_at`},
		{"both paid and cancelled", "orders_status",
			`status = 'cancelled', ended_by = 'worker', cancel_reason = 'customer',
			paid_at = created_at - interval '1 us', cancelled_at = created_at`},
		{"paid without a time", "orders_status", `status = 'paid', ended_by = 'worker'`},
		{"pending with a payment", "orders_status", `paid_at = created_at`},
		{"cancelled without a reason", "orders_status",
			`status = 'cancelled', ended_by = 'worker', cancelled_at = expires_at`},
		{"an unknown status", "orders_status", `status = 'lost', ended_by = 'worker'`},
		{"a deadline at the placement", "orders_expires_at", `expires_at = created_at`},
		{"a deadline that never comes", "orders_expires_at", `expires_at = 'infinity'`},
		{"a hold that never ends", "orders_hold_until", `hold_until = 'infinity'`},
		{"an idempotency key without a fingerprint", "orders_idempotency", `idempotency_key = 'k'`},
		{"an idempotency key used twice", "orders_idempotency_key",
			`INSERT INTO orders (id, customer_id, total_cents, currency, idempotency_key, fingerprint, created_at,
				expires_at) SELECT gen_random_uuid(), customer_id, 1, 'EUR', 'k', '', created_at, expires_at
				FROM orders CROSS JOIN generate_series(1, 2) WHERE id = $1`},
		{"an end of a pending order", "orders_ended_by", `ended_by = 'worker'`},
		{"an end by nobody", "orders_ended_by", `status = 'paid', paid_at = created_at`},
		{"an end by an operator", "orders_ended_by",
			`status = 'cancelled', cancel_reason = 'timeout', cancelled_at = expires_at, ended_by = 'operator'`},
		{"a payment after the deadline of a hold that was cleared", "orders_paid_at",
			paid + `hold_until = NULL, paid_at = expires_at`},
		{"a held payment that clears its hold after the deadline", "orders_paid_at",
			paid + `hold_until = NULL, paid_at = expires_at + interval '1 s'`},
		{"an earlier deadline after the payment", "orders_paid_at",
			paid + `paid_at = expires_at - interval '1 s', expires_at = expires_at - interval '1 min'`},
		{"a later deadline beyond the end of the hold", "orders_hold_until",
			`hold_until = expires_at + interval '1 min', expires_at = expires_at + interval '2 min'`},
		{"a hold that is released after the timeout", "orders_cancelled_at",
			timedOut + `cancelled_at = expires_at - interval '1 s', hold_until = NULL`},
		{"booked while it is pending", "orders_booked", `booked = true`},
		{"a negative number of extensions", "orders_extensions_check", `extensions = -1`},
		{"a moved deadline without the new one", "order_events_rescheduled",
			`INSERT INTO order_events (order_id, type, actor, at) VALUES ($1, 'rescheduled', 'customer', now())`},
		{"a deadline moved by an operator without a reason", "order_events_rescheduled",
			`INSERT INTO order_events (order_id, type, actor, at, deadline) VALUES ($1, 'rescheduled', 'operator',
			now(), now())`},
		{"a terminal event", "order_events_type",
			`INSERT INTO order_events (order_id, type, actor, at) VALUES ($1, 'paid', 'worker', now())`},
		{"an end by an unknown actor", "orders_ended_by", `status = 'paid', paid_at = created_at, ended_by = 'cat'`},
		{"more stock than supply", "products_check",
			`UPDATE products SET available = supply + 1 WHERE id = (SELECT product_id FROM order_items WHERE
			order_id = $1)`},
		{"negative stock", "products_check",
			`UPDATE products SET available = -1 WHERE id = (SELECT product_id FROM order_items WHERE order_id = $1)`},
		{"an item without a quantity", "order_items_quantity_check",
			`UPDATE order_items SET quantity = 0 WHERE order_id = $1`},
		{"an order that costs nothing", "orders_total_cents_check", `total_cents = 0`},
	} {
		t.Run(test.name, func(t *testing.T) {
			id := s.MustPlace(t, customer, line(product, 1)).ID
			_, err := s.DB.ExecContext(t.Context(), statement(test.change), id)
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
		ofOrder = ` WHERE id = (SELECT product_id FROM order_items WHERE order_id = $1)`
		release = `UPDATE products SET available = supply` + ofOrder
	)
	for _, test := range []struct {
		name     string
		violated []int // invariants
		bound    time.Duration
		changes  []string // of a pending order, or statements with its id as $1
	}{
		{"no violation", nil, 0, nil},
		{"stock lost", []int{1}, 0, []string{`UPDATE products SET available = available - 1` + ofOrder}},
		{"stock never reserved", []int{1}, 0, []string{`DELETE FROM order_items WHERE order_id = $1`}},
		{"both paid and cancelled", []int{2, 4}, 0,
			[]string{paid + `paid_at = created_at, cancelled_at = created_at`}},
		{"ended by nobody", []int{2}, 0, []string{`status = 'paid', paid_at = created_at`}},
		{"pending too long", []int{3}, 29 * time.Minute, []string{ordertest.ExpireSQL}},
		{"pending within the bound", nil, 31 * time.Minute, []string{ordertest.ExpireSQL}},
		{"paid too late", []int{4}, 0, []string{paid + `paid_at = expires_at`}},
		{"held past the deadline", nil, 0,
			[]string{`hold_until = expires_at + interval '1 hour'`, ordertest.ExpireSQL}},
		{"pending after its hold", []int{3}, 0,
			[]string{`hold_until = expires_at + interval '1 minute'`, ordertest.ExpireSQL}},
		{"paid during the hold", nil, 0, []string{held + paidElsewhere + `paid_at = expires_at`}},
		{"paid at the end of the hold", []int{4}, 0,
			[]string{held + paidElsewhere + `paid_at = expires_at + interval '1 h'`}},
		{"timed out too early", []int{1, 4}, 0, []string{timedOut + `cancelled_at = created_at`}},
		{"a negative number of available units", []int{1}, 0,
			[]string{`UPDATE products SET available = -1` + ofOrder,
				`UPDATE order_items SET quantity = 101 WHERE order_id = $1`}},
		{"more available units than the supply", []int{1}, 0,
			[]string{`UPDATE products SET available = 101` + ofOrder,
				`UPDATE order_items SET quantity = -1 WHERE order_id = $1`}},
		{"pending with a payment", []int{2}, 0, []string{`paid_at = created_at`}},
		{"pending with a cancellation", []int{2}, 0, []string{`cancelled_at = expires_at`}},
		{"pending with a reason", []int{2}, 0, []string{`cancel_reason = 'timeout'`}},
		{"pending with an actor", []int{2}, 0, []string{`ended_by = 'worker'`}},
		{"pending and booked", []int{2}, 0, []string{`booked = true`}},
		{"paid without a time", []int{2}, 0, []string{`status = 'paid', ended_by = 'customer'`}},
		{"paid for a reason", []int{2}, 0, []string{paid + `paid_at = created_at, cancel_reason = 'customer'`}},
		{"ended by an unknown actor", []int{2}, 0,
			[]string{`status = 'paid', paid_at = created_at, ended_by = 'cat'`}},
		{"an unknown status", []int{2}, 0, []string{release, `status = 'lost', ended_by = 'worker'`}},
		{"cancelled after a payment", []int{2}, 0,
			[]string{release, timedOut + `cancelled_at = expires_at, paid_at = created_at`}},
		{"cancelled without a time", []int{2}, 0,
			[]string{release, `status = 'cancelled', cancel_reason = 'timeout', ended_by = 'worker'`}},
		{"cancelled without a reason", []int{2}, 0,
			[]string{release, `status = 'cancelled', cancelled_at = expires_at, ended_by = 'worker'`}},
		{"cancelled for an unknown reason", []int{2}, 0,
			[]string{release, timedOut + `cancelled_at = expires_at`, `cancel_reason = 'mood'`}},
		{"cancelled by its customer at the deadline", []int{4}, 0,
			[]string{release, cancelled + `cancelled_at = expires_at`}},
		{"cancelled by its customer before the deadline", nil, 0,
			[]string{release, cancelled + `cancelled_at = created_at`}},
		{"timed out at the end of a hold before the deadline", []int{4}, 0,
			[]string{release, timedOut + `cancelled_at = created_at, hold_until = created_at`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			id := s.MustPlace(t, customer, line(product, 1)).ID
			for _, change := range test.changes {
				s.Exec(t, statement(change), id)
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

// statement returns the statement for a change of the columns of the order $1, or the text if it is a statement.
func statement(change string) string {
	if regexp.MustCompile(`^\s*[A-Z]{2}`).MatchString(change) {
		return change
	}
	return `UPDATE orders SET ` + change + ` WHERE id = $1`
}

// checkViolations compares which invariants are violated, each once. The subject must be the order, except for that of
// the first invariant.
func checkViolations(t *testing.T, store *order.Store, full bool, bound time.Duration, id uuid.UUID, want []int) {
	t.Helper()
	violations, err := store.Invariants(t.Context(), bound, full)
	testenv.Must(t, err)
	var got []int
	for _, v := range violations {
		got = append(got, v.Invariant)
		if want := "order " + id.String(); v.Invariant > 1 && v.Subject != want {
			t.Errorf("subject of the violation of invariant %d is %q, want %q", v.Invariant, v.Subject, want)
		}
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("the violated invariants are %v, want %v: %v", got, want, violations)
	}
}

// TestSeedProducts checks that seeding again succeeds and does not reset the stock.
func TestSeedProducts(t *testing.T) {
	s := newShop(t)
	for range 2 {
		testenv.Must(t, s.Store.SeedProducts(t.Context()))
	}
	products, err := s.Products(t.Context())
	if err != nil || len(products) < 3 {
		t.Fatalf("Products returns %d products, %v; want at least 3", len(products), err)
	}
	o := s.MustPlace(t, s.Customer(t), line(products[0].ID, 1))
	testenv.Must(t, s.Store.SeedProducts(t.Context()))
	if got := s.Available(t, products[0].ID); got != products[0].Available-1 || o.Currency != "EUR" {
		t.Errorf("%d available in %s, want %d in EUR", got, o.Currency, products[0].Available-1)
	}
	s.CheckInvariants(t, 0)
}
