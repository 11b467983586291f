-- Cancels those orders of a batch that are pending and past their due times, and releases their stock. It is
-- idempotent. It waits at most 500 ms for a product that another session has locked, because most sessions keep a
-- product for milliseconds, and the other orders of the batch must not wait long. It is the TimeOut of timeout.Rows.
--
-- $1 order ids · $2 who ends the orders
WITH setting AS MATERIALIZED (
    SELECT set_config('lock_timeout', '500', true)
),
locked AS MATERIALIZED (
    -- The count makes PostgreSQL evaluate setting first.
    -- now() is the start of the transaction: an order that becomes due later is not due for this statement.
    -- SKIP LOCKED, because a session that has locked an order is about to pay or cancel it, and the others need not
    -- wait. CASE keeps PostgreSQL from using the index of pending orders, so that it reads the orders by their ids.
    -- With the plain conditions, and statistics that say that few orders are pending, it would read all due orders for
    -- each batch, and compare each of them with all ids.
    SELECT id, expires_at, hold_until FROM orders
    WHERE id = ANY ($1::uuid[]) AND CASE status WHEN 'pending' THEN due_at <= now() END
      AND (SELECT count(*) FROM setting) = 1
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
ended AS (
    -- expires_at = l.expires_at and so on: PostgreSQL first computes the new row from the statement's snapshot and
    -- checks its constraints, and only then follows the row to its latest version. If another session has moved the
    -- deadline or the hold since the snapshot, the time would violate a constraint with the old values.
    UPDATE orders o SET status = 'cancelled', cancelled_at = clock_timestamp(), ended_by = $2::text,
        cancel_reason = 'timeout', expires_at = l.expires_at, hold_until = l.hold_until
    FROM locked l
    WHERE o.id = l.id
    RETURNING o.id, o.customer_id AS owner, o.cancel_reason AS reason, o.due_at, o.cancelled_at AS ended_at
),
quantities AS MATERIALIZED (
    SELECT i.product_id, sum(i.quantity)::bigint AS quantity
    FROM ended e JOIN order_items i ON i.order_id = e.id
    GROUP BY i.product_id
),
stock AS MATERIALIZED (
    -- In id order, as in every statement that locks products, so that no two statements deadlock.
    SELECT p.id, q.quantity
    FROM products p JOIN quantities q ON q.product_id = p.id
    ORDER BY p.id
    FOR NO KEY UPDATE OF p
),
released AS (
    UPDATE products p SET available = p.available + s.quantity
    FROM stock s
    WHERE p.id = s.id
)
