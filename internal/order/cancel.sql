-- Cancels a pending order for its customer before its deadline, releases its stock, and returns the order in its present
-- state. changed is true if this statement cancelled the order. Otherwise it was cancelled before, or it cannot be
-- cancelled: it is held or due, or it has ended. No row is returned if the customer has no such order. order.sql follows.
--
-- $1 order id · $2 customer id
WITH locked AS MATERIALIZED (
    SELECT * FROM orders WHERE id = $1::uuid AND customer_id = $2::uuid FOR UPDATE
),
clock AS MATERIALIZED (
    -- The clock is read after the lock is taken: a customer who waited for the lock past the deadline is too late.
    SELECT clock_timestamp() AS at FROM locked
),
changed AS (
    -- For expires_at and hold_until see pay.sql.
    UPDATE orders o SET status = 'cancelled', cancel_reason = 'customer', cancelled_at = clock.at, ended_by = 'customer',
        expires_at = l.expires_at, hold_until = l.hold_until
    FROM locked l CROSS JOIN clock
    WHERE o.id = l.id AND l.status = 'pending' AND clock.at < l.expires_at AND l.hold_until IS NULL
    RETURNING o.*
),
stock AS MATERIALIZED (
    -- In id order, as in every statement that locks products, so that no two statements deadlock.
    SELECT p.id, i.quantity
    FROM changed c JOIN order_items i ON i.order_id = c.id JOIN products p ON p.id = i.product_id
    ORDER BY p.id
    FOR NO KEY UPDATE OF p
),
released AS (
    UPDATE products p SET available = p.available + s.quantity
    FROM stock s
    WHERE p.id = s.id
),
result AS (
    SELECT *, true AS changed FROM changed
    UNION ALL
    SELECT *, false FROM locked WHERE NOT EXISTS (SELECT FROM changed)
)
