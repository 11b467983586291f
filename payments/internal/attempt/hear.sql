-- Takes the attempt that an event is about for a check, as take.sql does, unless the event tells nothing new. Returns
-- the attempt, and whether it is taken, or no row if there is none. The caller makes the check at once. If it gets no
-- answer, or is killed, the worker makes the check when the lease ends: the statement owes the task, and the statement
-- that ends the attempt deletes the task's outbox row again.
--
-- An attempt without a session takes that of the event: its creation may have reached the provider without an answer.
-- The column is unique, and an event may name the session of another attempt.
--
-- $1 attempt id · $2 session id · $3 true: the session is complete · $4 age from which an attempt is stale, in
-- microseconds · $5 kind of the outbox row
WITH told AS (
    UPDATE payment_attempts a
    SET told_at = coalesce(a.told_at, clock.at),
        session_id = coalesce(a.session_id, CASE
            WHEN NOT EXISTS (SELECT FROM payment_attempts WHERE session_id = $2::text) THEN $2::text END),
        -- The event of a session that the worker has expired needs no check: the attempt is closed, or its closing is
        -- under way. The lease is longer than a check may take.
        next_check = CASE WHEN a.state <> 'succeeded' AND ($3::boolean OR a.state <> 'closed' AND a.closes_at > clock.at)
                          THEN least(a.next_check, clock.at + interval '6 s') ELSE a.next_check END
    FROM (SELECT clock_timestamp() AS at) AS clock
    WHERE a.id = $1::uuid
    RETURNING a.id, a.order_id, a.state, coalesce(a.session_id, '') AS session_id, a.closes_at <= clock.at AS closing, true AS told,
              a.next_check, clock.at - a.opened_at >= $4::bigint * interval '1 microsecond' AS stale,
              a.state <> 'succeeded' AND ($3::boolean OR a.state <> 'closed' AND a.closes_at > clock.at) AS taken
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at)
    SELECT $5::text, id::text, next_check FROM told WHERE taken
    ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
)
SELECT t.*, o.status <> 'pending' AS order_ended FROM told t JOIN orders o ON o.id = t.order_id
