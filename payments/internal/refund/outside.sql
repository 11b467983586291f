-- Settles a failed refund outside of the provider, for good. Returns whether there is such a refund, and, if it had
-- failed, its order.
--
-- $1 refund id · $2 note · $3 actor
WITH settled AS (
    UPDATE refunds
    SET state = 'settled_outside', note = $2::text, actor = $3::text, ended_at = clock_timestamp(), next_check = NULL
    WHERE id = $1::uuid AND state = 'failed'
    RETURNING attempt_id
)
SELECT EXISTS (SELECT FROM refunds WHERE id = $1::uuid) AS found, a.id IS NOT NULL AS moved,
       a.order_id, o.customer_id
FROM (VALUES (true)) AS always LEFT JOIN settled s ON true
LEFT JOIN payment_attempts a ON a.id = s.attempt_id LEFT JOIN orders o ON o.id = a.order_id
