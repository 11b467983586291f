package payment_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"

	"example.com/shop/internal/order/ordertest"
	"example.com/shop/internal/testenv"
)

// TestQueryPlans checks that the statements that run all the time use indexes. It uses a connection of the shop's pool,
// because the session settings influence the plan.
func TestQueryPlans(t *testing.T) {
	t.Parallel()
	s := newMemoryShop(t)
	s.fillTables(t)
	id := uuid.NewString()
	for name, test := range map[string]struct {
		statement, params string
		indexes           []string
	}{
		"take":             {statement(t, "attempt/take.sql"), fmt.Sprintf("'{%s}', 1", id), []string{"payment_attempts_pkey", "orders_pkey"}},
		"tell":             {statement(t, "attempt/tell.sql"), fmt.Sprintf("'%s', 's', true, 0, 1, 'k'", id), []string{"payment_attempts_pkey", "orders_pkey"}},
		"take refunds":     {statement(t, "refund/take.sql"), fmt.Sprintf("'{%s}', 1", id), []string{"refunds_pkey", "payment_attempts_pkey"}},
		"pending attempts": {s.Rows().Pending, fmt.Sprintf("'0001-01-01', '%s', -1, 500", uuid.Nil), []string{"payment_attempts_due"}},
		"pending refunds":  {s.refunder.Rows().Pending, fmt.Sprintf("'0001-01-01', '%s', -1, 500", uuid.Nil), []string{"refunds_due"}},
		"books":            {statement(t, "books/settle.sql"), "'k', 'r'", []string{"payment_attempts_pkey", "refunds_pkey"}}, // it reads all movements, once
		"metrics":          {statement(t, "payment/unsettled.sql"), "", []string{"payment_attempts_live", "refunds_due", "refunds_failed"}},
	} {
		t.Run(name, func(t *testing.T) {
			plan := testenv.Explain(t, s.db, test.statement, test.params)
			testenv.CheckPlan(t, plan, test.indexes, "orders", "payment_attempts", "refunds")
		})
	}
}

// TestInvariantsReadFewOrders checks that the invariants read no order that is booked, and no attempt and refund of
// one, except for the refunds that have not ended.
func TestInvariantsReadFewOrders(t *testing.T) {
	testenv.Slow(t, "fills the tables")
	t.Parallel()
	s := newMemoryShop(t)
	s.fillTables(t)
	s.exec(t, `UPDATE orders SET booked = true WHERE id IN (SELECT id FROM orders WHERE status <> 'pending' OFFSET 100)`)
	s.exec(t, `VACUUM ANALYZE`)
	plan := testenv.Explain(t, s.db, strings.NewReplacer("$1", "1000000", "$2", "false").Replace(statement(t, "payment/invariants.sql")), "")
	ordertest.CheckOpenPlan(t, plan)
	testenv.CheckPlan(t, plan, []string{
		"payment_attempts_number", "payment_attempts_pkey", "payment_attempts_due", "refunds_due", "refunds_of_attempt",
	}, "payment_attempts", "refunds")
}

// fillTables inserts 8,000 paid orders with an attempt each. 200 further orders have open attempts. Every tenth
// attempt has a refund, of which 20 wait for a check and 10 failed. The books have a movement of each payment.
func (s *shop) fillTables(t *testing.T) {
	t.Helper()
	customer := uuid.New()
	s.exec(t, `
		INSERT INTO orders (id, customer_id, status, ended_by, total_cents, currency, created_at, expires_at, hold_until, paid_at)
		SELECT gen_random_uuid(), $1, CASE WHEN i <= 200 THEN 'pending' ELSE 'paid' END, CASE WHEN i > 200 THEN 'provider' END, 100, 'EUR', at, at + interval '30 min',
		       at + interval '32 min', CASE WHEN i > 200 THEN at END
		FROM (SELECT i, now() - i * interval '1 s' AS at FROM generate_series(1, 8200) i) o`, customer)
	s.exec(t, `
		INSERT INTO payment_attempts (id, order_id, number, amount_cents, currency, state, applied, session_id, checkout_url, payment_intent,
			captured_cents, opened_at, closes_at, session_expires_at, next_check, ended_at)
		SELECT gen_random_uuid(), id, 1, 100, 'eur', CASE WHEN live THEN 'open' ELSE 'succeeded' END, NOT live, 'cs_' || id, 'url',
		       CASE WHEN NOT live THEN 'pi_' || id END, CASE WHEN live THEN 0 ELSE 100 END, created_at, created_at + interval '1 h', created_at + interval '1 h',
		       CASE WHEN live THEN now() END, paid_at
		FROM (SELECT *, status = 'pending' AS live FROM orders) o`)
	s.exec(t, `
		INSERT INTO refunds (id, attempt_id, reason, amount_cents, state, provider_id, created_at, next_check, ended_at)
		SELECT gen_random_uuid(), id, 'late', 100, state, 're_' || id, now(), CASE state WHEN 'owed' THEN now() END, CASE WHEN state <> 'owed' THEN now() END
		FROM (
			SELECT id, CASE WHEN n <= 20 THEN 'owed' WHEN n <= 30 THEN 'failed' ELSE 'confirmed' END AS state
			FROM (SELECT id, row_number() OVER () AS n FROM payment_attempts WHERE state = 'succeeded' LIMIT 800) a
		) a`)
	s.exec(t, `
		INSERT INTO provider_movements (id, kind, at, amount_cents, currency, source_id, intent, attempt_id)
		SELECT 'txn_' || id, 'captured', now(), 100, 'eur', 'ch_' || id, payment_intent, id FROM payment_attempts WHERE state = 'succeeded'`)
	s.exec(t, `VACUUM ANALYZE`)
}
