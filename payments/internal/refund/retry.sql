-- Makes a refund that failed at the provider owed again, with a new key, and owes its task. Returns whether there is
-- such a refund, and, if it had failed, its order.
--
-- $1 refund id · $2 kind of the outbox row
WITH retried AS (
    UPDATE refunds
    SET state = 'owed', try = try + 1, ended_at = NULL, next_check = clock_timestamp()
    WHERE id = $1::uuid AND state = 'failed'
    RETURNING id, attempt_id, next_check
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at)
    SELECT $2::text, id::text, next_check FROM retried
    ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
)
SELECT EXISTS (SELECT FROM refunds WHERE id = $1::uuid) AS found, r.id IS NOT NULL AS moved,
       a.order_id, o.customer_id
FROM (VALUES (true)) AS always LEFT JOIN retried r ON true
LEFT JOIN payment_attempts a ON a.id = r.attempt_id LEFT JOIN orders o ON o.id = a.order_id
