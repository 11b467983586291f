-- Cancels a pending order for its customer before its deadline, or while its checkout is open, and returns the order in its present state. If the order
-- is not held, the statement cancels it and releases its stock. If the order is held, the statement records the request
-- and owes the task of the hold, which is due now: the order is cancelled when the hold ends. changed is true if this
-- statement did one of the two. Otherwise a statement before it did, or the order cannot be cancelled. The statement
-- returns no row if the customer has no such order.
--
-- $1 order id · $2 customer id · $3 kind of the task of a hold, '' for no outbox row
WITH locked AS MATERIALIZED (
    SELECT * FROM orders WHERE id = $1::uuid AND customer_id = $2::uuid FOR UPDATE
),
decided AS MATERIALIZED (
    -- The clock is read after the lock is taken: a customer who waited for the lock past the deadline is too late.
    SELECT *, clock_timestamp() AS at FROM locked
),
changed AS (
    -- A hold that ends after a request leaves the order for the worker to cancel. If the customer repeats the request
    -- first, even after the deadline, this statement cancels the order.
    -- expires_at = d.expires_at and so on: PostgreSQL first computes the new row from the statement's snapshot and checks
    -- its constraints, and only then follows the row to its latest version. If another session has moved the deadline or
    -- the hold since the snapshot, d.at would violate a constraint with the old values.
    UPDATE orders o SET
        status        = CASE WHEN d.hold_until IS NULL THEN 'cancelled' ELSE 'pending' END,
        cancel_reason = CASE WHEN d.hold_until IS NULL THEN 'customer' END,
        cancelled_at  = CASE WHEN d.hold_until IS NULL THEN d.at END,
        ended_by      = CASE WHEN d.hold_until IS NULL THEN 'customer' END,
        cancel_requested_at = coalesce(d.cancel_requested_at, d.at),
        expires_at = d.expires_at, checkout_until = d.checkout_until, hold_until = d.hold_until
    FROM decided d
    WHERE o.id = d.id AND d.status = 'pending'
      AND CASE WHEN d.cancel_requested_at IS NOT NULL THEN d.hold_until IS NULL
               ELSE d.at < greatest(d.expires_at, CASE WHEN d.hold_until IS NOT NULL THEN d.checkout_until END) END
    RETURNING o.id, o.status, o.cancel_reason, o.cancelled_at, o.cancel_requested_at, o.due_at, d.at
),
stock AS MATERIALIZED (
    -- In id order, as in every statement that locks products, so that no two statements deadlock.
    SELECT p.id, i.quantity
    FROM changed c JOIN order_items i ON i.order_id = c.id JOIN products p ON p.id = i.product_id
    WHERE c.status = 'cancelled'
    ORDER BY p.id
    FOR NO KEY UPDATE OF p
),
released AS (
    UPDATE products p SET available = p.available + s.quantity
    FROM stock s
    WHERE p.id = s.id
),
event AS (
    INSERT INTO order_events (order_id, type, actor, at)
    SELECT id, 'cancel_requested', 'customer', at FROM changed WHERE status = 'pending'
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at)
    SELECT $3::text, id::text, at FROM changed WHERE status = 'pending' AND $3::text <> ''
    ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
)
SELECT d.id, d.customer_id, coalesce(c.status, d.status) AS status, coalesce(c.cancel_reason, d.cancel_reason) AS cancel_reason,
       d.total_cents, d.currency, d.created_at, d.expires_at, coalesce(c.due_at, d.due_at) AS due_at, d.hold_until,
       CASE WHEN d.hold_until IS NOT NULL THEN greatest(d.expires_at, d.checkout_until) END AS checkout_until,
       coalesce(c.cancel_requested_at, d.cancel_requested_at) AS cancel_requested_at, d.extended_at,
       d.paid_at, coalesce(c.cancelled_at, d.cancelled_at) AS cancelled_at,
       d.at AS server_time, c.id IS NOT NULL AS changed, (
    SELECT json_agg(json_build_object('product_id', p.id, 'name', p.name,
                                      'quantity', i.quantity, 'unit_price_cents', i.unit_price_cents) ORDER BY p.id)
    FROM order_items i JOIN products p ON p.id = i.product_id
    WHERE i.order_id = d.id
) AS items
FROM decided d LEFT JOIN changed c ON c.id = d.id
