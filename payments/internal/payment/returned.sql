-- Makes the live attempt of a customer's order due for a check now, because the customer has come back from the checkout.
-- It does so at most once in 10 seconds, so that a customer who repeats the request cannot use up the calls to the
-- provider. Returns the order, and when the check is due if one is, or no row if the customer has no such order.
--
-- $1 order id · $2 customer id · $3 kinds of the outbox rows, '' for none
WITH own AS (
    SELECT id FROM orders WHERE id = $1::uuid AND customer_id = $2::uuid
),
checked AS (
    UPDATE payment_attempts a SET next_check = clock.at, asked_at = clock.at, hinted_at = clock.at
    FROM own, (SELECT clock_timestamp() AS at) AS clock
    WHERE a.order_id = own.id AND a.state IN ('creating', 'open') AND a.session_id IS NOT NULL
      AND coalesce(a.hinted_at, '-infinity') < clock.at - interval '10 s'
    RETURNING a.order_id, a.next_check
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at)
    SELECT kind, order_id::text, next_check FROM checked, unnest($3::text[]) AS kind WHERE kind <> '' ORDER BY kind
    ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
)
SELECT own.id, c.next_check AS due_at, clock_timestamp() AS server_time FROM own LEFT JOIN checked c ON true
