-- Stores the id of an event about a refund at the provider, and makes the refund of the payment due for a check now.
-- Returns whether the event is new, and the refund, if there is one. A refund that has ended is checked too: one that the
-- provider has confirmed can still fail at the customer's bank, and an operator can return the money of one that failed.
--
-- $1 event id · $2 event type · $3 payment intent · $4 kind of the outbox row
WITH event AS (
    INSERT INTO provider_events (id, type) VALUES ($1::text, $2::text)
    ON CONFLICT DO NOTHING
    RETURNING id, received_at
),
checked AS (
    UPDATE refunds r SET next_check = e.received_at
    FROM event e, payment_attempts a
    WHERE a.payment_intent = $3::text AND r.attempt_id = a.id
    RETURNING r.id, r.next_check
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at)
    SELECT $4::text, id::text, next_check FROM checked
    ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
)
SELECT e.id IS NOT NULL AS stored, coalesce(c.id::text, '') AS task, c.next_check AS due_at,
       clock_timestamp() AS server_time
FROM (VALUES (true)) AS always LEFT JOIN event e ON true LEFT JOIN checked c ON true
