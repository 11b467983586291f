-- Takes an attempt for a check, as take.sql does, because an event or its customer tells that its session may have
-- ended. Returns the attempt, and whether it is taken, or no row if there is none. The caller makes the check at once.
-- If it gets no answer, or is killed, the worker makes the check when the lease ends: the statement owes the task, and
-- the statement that ends the attempt deletes the task's outbox row again.
--
-- An attempt without a session takes that of the event: its creation may have reached the provider without an answer.
-- The column is unique, and an event may name the session of another attempt.
--
-- $1 attempt id · $2 session id · $3 true: the session is complete · $4 least time since the last telling, in
-- microseconds · $5 age from which an attempt is stale, in microseconds · $6 kind of the outbox row
WITH told AS (
    UPDATE payment_attempts a
    SET told_at = clock.at, next_check = least(a.next_check, clock.at + interval '6 s'), -- longer than a check may take
        session_id = coalesce(a.session_id, CASE
            WHEN NOT EXISTS (SELECT FROM payment_attempts WHERE session_id = $2::text) THEN $2::text END)
    FROM (SELECT clock_timestamp() AS at) AS clock
    WHERE a.id = $1::uuid AND a.state <> 'succeeded'
      AND coalesce(a.told_at <= clock.at - $4::bigint * interval '1 microsecond', true)
      -- Of a session that has expired, nothing is new if the attempt is closed or closing.
      AND ($3::boolean OR a.state <> 'closed' AND a.closes_at > clock.at)
    RETURNING a.*, clock.at
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at)
    SELECT $6::text, id::text, next_check FROM told
    ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
)
SELECT a.id, a.order_id, a.state, coalesce(t.session_id, '') AS session_id, t.closes_at <= t.at AS closing, true AS told,
       t.next_check, t.at - t.opened_at >= $5::bigint * interval '1 microsecond' AS stale,
       o.status <> 'pending' AS order_ended, t.id IS NOT NULL AS taken
FROM payment_attempts a JOIN orders o ON o.id = a.order_id LEFT JOIN told t ON true
WHERE a.id = $1::uuid
