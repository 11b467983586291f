-- Prepares the removal of orders: payments with captured money lose their order and stay, because the provider may still move
-- the money, and the other attempts are deleted. Returns the orders that must stay: something is checked again later, an
-- operator must act, a dispute has withdrawn money, or the provider has money with the order's id that is not claimed.
--
-- $1 order ids
WITH attempt AS (
    SELECT a.id, a.order_id, a.state, a.next_check, a.disputed_cents FROM payment_attempts a WHERE a.order_id = ANY ($1::uuid[])
),
owed AS MATERIALIZED (
    SELECT a.order_id FROM attempt a
    WHERE a.next_check IS NOT NULL OR a.state IN ('creating', 'open') OR a.disputed_cents > 0
       OR EXISTS (SELECT FROM refunds r WHERE r.attempt_id = a.id AND (r.next_check IS NOT NULL OR r.state = 'failed'))
       OR a.state = 'closed' AND EXISTS (SELECT FROM provider_movements WHERE attempt_id = a.id)
    UNION
    SELECT m.meta_order
    FROM provider_movements m LEFT JOIN unclaimed_payments u ON u.intent = m.intent
    WHERE m.attempt_id IS NULL AND m.meta_order = ANY ($1::uuid[]) AND coalesce(u.state, 'open') IN ('open', 'refunding')
),
free AS (
    SELECT id, state FROM attempt WHERE order_id NOT IN (SELECT order_id FROM owed)
),
kept AS (
    UPDATE payment_attempts a SET removed_order = a.order_id, order_id = NULL, checkout_url = NULL
    FROM free f WHERE f.id = a.id AND f.state = 'succeeded'
),
deleted AS (
    DELETE FROM payment_attempts a USING free f WHERE f.id = a.id AND f.state = 'closed'
)
SELECT order_id AS id FROM owed
