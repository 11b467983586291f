-- Cancels a pending order for its customer before it is due, and returns the order in its present state. If the order
-- is not held, the statement cancels it and releases its stock. If the order is held, the statement records the request
-- and writes the outbox row of the hold's task, which is due now. The order is then cancelled when the hold ends.
-- changed is true if this statement cancelled the order or recorded the request. It is false if an earlier statement
-- did so, or if the order cannot be cancelled. No row is returned if the customer has no such order. order.sql follows.
--
-- $1 order id · $2 customer id · $3 kind of the task of a hold, '' for no outbox row
WITH locked AS MATERIALIZED (
    SELECT * FROM orders WHERE id = $1::uuid AND customer_id = $2::uuid FOR UPDATE
),
clock AS MATERIALIZED (
    -- The clock is read after the lock is taken: a customer who waited for the lock past the deadline is too late.
    SELECT clock_timestamp() AS at FROM locked
),
changed AS (
    -- When a hold ends after such a request, the worker cancels the order. If the customer repeats the request before
    -- that, even after the deadline, this statement cancels the order. For expires_at and hold_until see pay.sql.
    UPDATE orders o SET
        status        = CASE WHEN l.hold_until IS NULL THEN 'cancelled' ELSE 'pending' END,
        cancel_reason = CASE WHEN l.hold_until IS NULL THEN 'customer' END,
        cancelled_at  = CASE WHEN l.hold_until IS NULL THEN clock.at END,
        ended_by      = CASE WHEN l.hold_until IS NULL THEN 'customer' END,
        cancel_requested_at = coalesce(l.cancel_requested_at, clock.at),
        expires_at = l.expires_at, hold_until = l.hold_until
    FROM locked l CROSS JOIN clock
    WHERE o.id = l.id AND l.status = 'pending'
      AND CASE WHEN l.cancel_requested_at IS NULL THEN clock.at < l.due_at ELSE l.hold_until IS NULL END
    RETURNING o.*
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
    SELECT id, 'cancel_requested', 'customer', cancel_requested_at FROM changed WHERE status = 'pending'
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at)
    SELECT $3::text, id::text, cancel_requested_at FROM changed WHERE status = 'pending' AND $3::text <> ''
    ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
),
result AS (
    SELECT *, true AS changed FROM changed
    UNION ALL
    SELECT *, false FROM locked WHERE NOT EXISTS (SELECT FROM changed)
)
