-- Cancels those orders of a batch that are pending and past their due times, releases their stock, and returns the
-- outcome for every order of the batch. It is idempotent. It waits at most 500 ms for a product that another session has
-- locked: most sessions keep a product for milliseconds, and the other orders of the batch must not wait long.
--
-- $1 order ids · $2 who ends the orders
WITH setting AS MATERIALIZED (
    SELECT set_config('lock_timeout', '500', true)
),
locked AS MATERIALIZED (
    -- The count makes PostgreSQL evaluate setting first.
    -- now() is the start of the transaction: an order that becomes due later is not due for this statement.
    -- SKIP LOCKED: a session that has locked an order is about to pay or cancel it. The rest of the batch need not wait.
    -- CASE: PostgreSQL cannot use the index of pending orders for it, so it reads the orders by their ids. With the plain
    -- conditions, and statistics that say that few orders are pending, it would read all due orders for each batch, and
    -- compare each of them with all ids.
    SELECT id, expires_at, hold_until, cancel_requested_at FROM orders
    WHERE id = ANY ($1::uuid[]) AND CASE status WHEN 'pending' THEN due_at <= now() END
      AND (SELECT count(*) FROM setting) = 1
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
cancelled AS (
    -- expires_at = l.expires_at and so on: see pay.sql.
    UPDATE orders o SET status = 'cancelled', cancelled_at = clock_timestamp(), ended_by = $2::text,
        cancel_reason = CASE WHEN l.cancel_requested_at IS NULL THEN 'timeout' ELSE 'customer' END,
        expires_at = l.expires_at, hold_until = l.hold_until, cancel_requested_at = l.cancel_requested_at
    FROM locked l
    WHERE o.id = l.id
    RETURNING o.id, o.customer_id, o.cancel_reason, o.due_at, o.cancelled_at
),
quantities AS MATERIALIZED (
    SELECT i.product_id, sum(i.quantity)::bigint AS quantity
    FROM cancelled c JOIN order_items i ON i.order_id = c.id
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
-- NOT IN uses a hash table. A join with cancelled can become a nested loop that compares each id of the batch with each
-- cancelled order, because the planner expects few orders to be due. late_us and left_us are microseconds: how late the
-- order was cancelled, and the time left until it is due.
SELECT id, customer_id AS owner, 'timed_out' AS state, cancel_reason AS reason,
       (extract(epoch FROM cancelled_at - due_at) * 1000000)::bigint AS late_us, 0::bigint AS left_us
FROM cancelled
UNION ALL
SELECT batch.id, o.customer_id,
       -- the other states of reconcile.RowState
       CASE
           WHEN o.id IS NULL          THEN 'gone'
           WHEN o.status <> 'pending' THEN 'already_ended'
           WHEN o.due_at > now()      THEN 'not_due'
           ELSE 'locked' -- or paid or cancelled since the statement began: a retry then finds that it has ended
       END,
       NULL, 0, coalesce(extract(epoch FROM o.due_at - clock_timestamp()) * 1000000, 0)::bigint
FROM unnest($1::uuid[]) AS batch (id)
LEFT JOIN orders o ON o.id = batch.id
WHERE batch.id NOT IN (SELECT id FROM cancelled)
