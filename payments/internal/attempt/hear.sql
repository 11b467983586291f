-- Stores the id of an event about a session, and takes the attempt that the session belongs to for a check, as take.sql
-- does, unless the event tells nothing new. Returns the outcome of the event, '' for a repeated one, and the taken
-- attempt. The caller makes the check at once. If it gets no answer, or is killed, the worker makes the check when the
-- lease ends: the statement owes the task, and the statement that ends the attempt deletes the task's outbox row again.
--
-- An attempt that never was open takes the session of the event: its creation may have reached the provider without an
-- answer. The column is unique, and an event may name the session of another attempt.
--
-- $1 event id · $2 event type · $3 attempt id or NULL · $4 session id · $5 true: the session is complete
-- $6 true: the event names this deployment · $7 age from which an attempt is stale, in microseconds
-- $8 kind of the outbox row
WITH event AS (
    INSERT INTO provider_events (id, type, outcome)
    SELECT $1::text, $2::text, CASE
        WHEN EXISTS (SELECT FROM payment_attempts WHERE id = $3::uuid) THEN 'matched'
        WHEN $6::boolean THEN 'unmatched' ELSE 'foreign' END
    ON CONFLICT DO NOTHING
    RETURNING received_at, outcome
),
told AS (
    UPDATE payment_attempts a
    SET told_at = coalesce(a.told_at, e.received_at),
        session_id = CASE WHEN a.was_open OR a.state = 'succeeded' OR EXISTS (SELECT FROM payment_attempts WHERE session_id = $4::text)
                          THEN a.session_id ELSE $4::text END,
        -- The event of a session that the worker has expired needs no check: the attempt is closed, or its closing is
        -- under way. The lease is longer than a check may take.
        next_check = CASE WHEN a.state <> 'succeeded' AND ($5::boolean OR a.state <> 'closed' AND NOT a.closing)
                          THEN least(a.next_check, e.received_at + interval '6 s') ELSE a.next_check END
    FROM event e
    WHERE a.id = $3::uuid AND e.outcome = 'matched'
    RETURNING a.id, a.order_id, a.state, coalesce(a.session_id, '') AS session_id, a.closing, true AS told, a.next_check,
              e.received_at - a.opened_at >= $7::bigint * interval '1 microsecond' AS stale,
              a.state <> 'succeeded' AND ($5::boolean OR a.state <> 'closed' AND NOT a.closing) AS taken
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at)
    SELECT $8::text, order_id::text, next_check FROM told WHERE taken
    ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
)
SELECT coalesce(e.outcome, '') AS outcome, t.id, t.order_id, t.state, t.session_id, t.closing, t.told, t.next_check, t.stale,
       o.status <> 'pending' AS order_ended, coalesce(t.taken, false) AS taken
FROM (VALUES (true)) AS always LEFT JOIN event e ON true LEFT JOIN told t ON t.taken LEFT JOIN orders o ON o.id = t.order_id
