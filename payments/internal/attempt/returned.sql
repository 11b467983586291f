-- Takes the live attempt of a customer's order for a check, as hear.sql does, because the customer has come back from
-- the checkout. It does so at most once in 10 seconds, so that a customer who repeats the request cannot use up the
-- calls to the provider. Returns the attempt if it is taken, or no row if the customer has no such order.
--
-- $1 order id · $2 customer id · $3 age from which an attempt is stale, in microseconds
-- $4 kind of the outbox row
WITH own AS (
    SELECT id, status FROM orders WHERE id = $1::uuid AND customer_id = $2::uuid
),
returned AS (
    UPDATE payment_attempts a SET next_check = least(a.next_check, clock.at + interval '6 s'), hinted_at = clock.at
    FROM own, (SELECT clock_timestamp() AS at) AS clock
    WHERE a.order_id = own.id AND a.state IN ('creating', 'open') AND a.session_id IS NOT NULL
      AND coalesce(a.hinted_at, '-infinity') < clock.at - interval '10 s'
    RETURNING a.id, a.order_id, a.state, a.session_id, a.closes_at <= clock.at AS closing, a.told_at IS NOT NULL AS told,
              a.next_check, clock.at - a.opened_at >= $3::bigint * interval '1 microsecond' AS stale
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at)
    SELECT $4::text, id::text, next_check FROM returned
    ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
)
SELECT r.*, own.status <> 'pending' AS order_ended, r.id IS NOT NULL AS taken
FROM own LEFT JOIN returned r ON true
