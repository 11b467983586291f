-- Stores the id of an event, and makes the attempt that the event is about due for a check now. Returns whether the
-- event is new, and the order of the attempt, if there is one whose payment is not known yet. The session's id is stored
-- if the attempt has none: its creation may have reached the provider without an answer.
--
-- $1 event id · $2 event type · $3 attempt id or NULL · $4 session id · $5 kind of the outbox row
WITH event AS (
    INSERT INTO provider_events (id, type) VALUES ($1::text, $2::text)
    ON CONFLICT DO NOTHING
    RETURNING id, received_at
),
checked AS (
    UPDATE payment_attempts a SET next_check = e.received_at, session_id = coalesce(a.session_id, $4::text)
    FROM event e
    WHERE a.id = $3::uuid AND a.state <> 'succeeded'
    RETURNING a.order_id, a.next_check
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at)
    SELECT $5::text, order_id::text, next_check FROM checked
    ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
)
SELECT e.id IS NOT NULL AS stored, coalesce(c.order_id::text, '') AS task, c.next_check AS due_at,
       clock_timestamp() AS server_time
FROM (VALUES (true)) AS always LEFT JOIN event e ON true LEFT JOIN checked c ON true
