-- Adds the event of the reminder to those orders of a batch that are pending and have their deadlines within the lead
-- time. It returns for every order of the batch whether the event was added, and when its task is due again. It is
-- idempotent.
--
-- $1 order ids · $2 lead time in microseconds
WITH locked AS MATERIALIZED (
    -- The foreign key of the event takes this lock anyway. The statement takes it first, so that no order ends before the
    -- event is added. SKIP LOCKED: a session that has locked an order is about to end or to change it. If the statement
    -- waited for that session, then other sessions would wait for the orders that the statement has locked.
    -- CASE: see cancel_due.sql.
    SELECT id, expires_at FROM orders
    WHERE id = ANY ($1::uuid[]) AND CASE status WHEN 'pending' THEN true END
    ORDER BY id
    FOR KEY SHARE SKIP LOCKED
),
timed AS MATERIALIZED (
    SELECT id, expires_at, expires_at - $2::bigint * interval '1 microsecond' AS due_at, clock_timestamp() AS at FROM locked
),
reminded AS (
    INSERT INTO order_events (order_id, type, actor, at)
    SELECT id, 'reminded', 'worker', at FROM timed
    WHERE at >= due_at AND at < expires_at
    ON CONFLICT (order_id) WHERE type = 'reminded' DO NOTHING
    RETURNING order_id
)
SELECT batch.id, o.customer_id AS owner, r.order_id IS NOT NULL AS reminded,
       -- the microseconds until the task is due again; NULL: the task is done
       CASE
           WHEN t.at < t.due_at THEN (extract(epoch FROM t.due_at - clock_timestamp()) * 1000000)::bigint
           WHEN t.id IS NULL AND o.status = 'pending' THEN 100000 -- locked
       END AS again_us
FROM unnest($1::uuid[]) AS batch (id)
LEFT JOIN orders o ON o.id = batch.id
LEFT JOIN timed t ON t.id = batch.id
LEFT JOIN reminded r ON r.order_id = batch.id
