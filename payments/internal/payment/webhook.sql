-- Stores the id of an event about a session, and makes the attempt that the session belongs to due for a check now.
-- Returns the outcome of the event, '' for a repeated one, and the order of the attempt if a check is due because of the
-- event. The session's id is stored if the attempt has none: its creation may have reached the provider without an answer.
--
-- $1 event id · $2 event type · $3 attempt id or NULL · $4 session id · $5 kinds of the outbox rows, '' for none
-- $6 true: the event says that the session is complete · $7 the outcome if the caller knows it, or NULL
-- $8 true: the event names this deployment
WITH event AS (
    INSERT INTO provider_events (id, type, outcome)
    SELECT $1::text, $2::text, coalesce($7::text, CASE
        WHEN EXISTS (SELECT FROM payment_attempts WHERE id = $3::uuid) THEN 'matched'
        WHEN $8::boolean THEN 'unmatched' ELSE 'foreign' END)
    ON CONFLICT DO NOTHING
    RETURNING id, received_at, outcome
),
checked AS (
    UPDATE payment_attempts a
    SET told_at = coalesce(a.told_at, e.received_at),
        -- The column is unique, and an event may name a session of another attempt.
        session_id = coalesce(a.session_id, CASE WHEN NOT EXISTS (SELECT FROM payment_attempts WHERE session_id = $4::text) THEN $4::text END),
        asked_at = CASE WHEN $6::boolean AND a.state <> 'succeeded' THEN e.received_at ELSE a.asked_at END,
        -- The event of the shop's own expire needs no check: the attempt is closed, or its closing is under way.
        next_check = CASE WHEN a.state = 'succeeded' OR (NOT $6::boolean AND (a.state = 'closed' OR a.closing))
                          THEN a.next_check ELSE e.received_at END
    FROM event e
    WHERE a.id = $3::uuid AND e.outcome = 'matched'
    RETURNING a.order_id, a.next_check, a.next_check IS NOT DISTINCT FROM e.received_at AS moved
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at)
    SELECT kind, order_id::text, next_check FROM checked, unnest($5::text[]) AS kind WHERE moved AND kind <> '' ORDER BY kind
    ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
)
SELECT coalesce(e.outcome, '') AS outcome, coalesce(c.order_id::text, '') AS task, c.next_check AS due_at,
       clock_timestamp() AS server_time
FROM (VALUES (true)) AS always LEFT JOIN event e ON true LEFT JOIN checked c ON c.moved
