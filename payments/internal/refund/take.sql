-- Takes the refunds that are due for a check, and moves their next check on, so that no other worker takes them
-- meanwhile. Returns the taken refunds. It skips refunds that another session has locked. The next check that it
-- stores is a lease, as that of take.sql: only an answer of the provider moves it further away; see move.sql.
--
-- $1 refund ids · $2 age from which a refund is old, in microseconds
WITH due AS MATERIALIZED (
    SELECT id, clock_timestamp() AS at
    FROM refunds
    WHERE id = ANY ($1::uuid[]) AND next_check <= now() AND state <> 'settled_outside'
    FOR UPDATE SKIP LOCKED
)
UPDATE refunds r
SET next_check = due.at + least(greatest((due.at - r.created_at) / 10, interval '2 s'), interval '30 s')
FROM due JOIN refunds old ON old.id = due.id JOIN payment_attempts a ON a.id = old.attempt_id
    JOIN orders o ON o.id = a.order_id
WHERE r.id = due.id
RETURNING r.id, r.state, r.try, coalesce(r.error, '') AS error, r.amount_cents,
          r.next_check, a.payment_intent, a.order_id, o.customer_id,
          due.at - r.created_at >= $2::bigint * interval '1 microsecond' AS old
