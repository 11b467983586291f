-- Cancels a pending order for its customer before its deadline, releases its stock, and returns the order in its
-- present state. changed is true if this statement cancelled the order. Otherwise the order was cancelled before, or it
-- cannot be cancelled. The statement returns no row if the customer has no such order.
--
-- $1 order id · $2 customer id
WITH locked AS MATERIALIZED (
    SELECT * FROM orders WHERE id = $1::uuid AND customer_id = $2::uuid FOR UPDATE
),
decided AS MATERIALIZED (
    -- The clock is read while the lock is held: a customer who waited for the lock past the deadline is too late.
    SELECT *, clock_timestamp() AS at FROM locked
),
cancelled AS (
    -- expires_at = d.expires_at: PostgreSQL first computes the new row from the statement's snapshot and checks its
    -- constraints, and only then follows the row to its latest version. If another session has moved the deadline since
    -- the snapshot, d.at would violate a constraint with the old deadline.
    UPDATE orders o SET status = 'cancelled', cancel_reason = 'customer', cancelled_at = d.at, expires_at = d.expires_at
    FROM decided d
    WHERE o.id = d.id AND d.status = 'pending' AND d.at < d.expires_at
    RETURNING o.id, o.status, o.cancel_reason, o.cancelled_at
),
stock AS MATERIALIZED (
    -- In id order, as in every statement that locks products, so that no two statements deadlock.
    SELECT p.id, i.quantity
    FROM cancelled c JOIN order_items i ON i.order_id = c.id JOIN products p ON p.id = i.product_id
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
    SELECT id, 'cancelled', 'customer', cancelled_at FROM cancelled
)
SELECT d.id, d.customer_id, coalesce(c.status, d.status) AS status, coalesce(c.cancel_reason, d.cancel_reason) AS cancel_reason,
       d.total_cents, d.currency, d.created_at, d.expires_at, d.paid_at, coalesce(c.cancelled_at, d.cancelled_at) AS cancelled_at,
       d.at AS server_time, c.id IS NOT NULL AS changed, (
    SELECT json_agg(json_build_object('product_id', p.id, 'name', p.name,
                                      'quantity', i.quantity, 'unit_price_cents', i.unit_price_cents) ORDER BY p.id)
    FROM order_items i JOIN products p ON p.id = i.product_id
    WHERE i.order_id = d.id
) AS items
FROM decided d LEFT JOIN cancelled c ON c.id = d.id
