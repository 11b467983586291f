-- Expires those bookings of a batch that are pending and past their deadlines, and releases their places. It is
-- idempotent. It waits at most 500 ms for a course that another session has locked, because the other bookings of the
-- batch must not wait long. It is the TimeOut of timeout.Rows.
--
-- $1 ids · $2 actor: the worker or the reconciler
WITH setting AS MATERIALIZED (
    SELECT set_config('lock_timeout', '500', true)
),
locked AS MATERIALIZED (
    -- The count makes PostgreSQL evaluate setting first.
    -- SKIP LOCKED: a session that has locked a booking is about to end it. The rest of the batch need not wait.
    -- CASE: PostgreSQL cannot use the index of pending bookings for this condition, so it reads the bookings by their
    -- ids. With the plain conditions it may read, for each batch, all bookings that are due.
    SELECT id, expires_at FROM bookings
    WHERE id = ANY ($1::uuid[]) AND CASE status WHEN 'pending' THEN expires_at <= now() END
      AND (SELECT count(*) FROM setting) = 1
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
ended AS (
    -- expires_at = l.expires_at: PostgreSQL checks the constraints on the row as the statement first saw it, before it
    -- reads the version that a session has committed meanwhile, which may have another deadline.
    UPDATE bookings b
    SET status = 'expired', ended_at = clock_timestamp(), ended_by = $2::text, expires_at = l.expires_at
    FROM locked l
    WHERE b.id = l.id
    RETURNING b.id, b.course_id, b.places, b.expires_at AS due_at, b.ended_at
),
taken AS MATERIALIZED (
    SELECT course_id, sum(places)::bigint AS places FROM ended GROUP BY course_id
),
counters AS MATERIALIZED (
    -- In id order, as in every statement that locks several courses, so that no two statements deadlock.
    SELECT c.id, t.places FROM courses c JOIN taken t ON t.course_id = c.id
    ORDER BY c.id
    FOR NO KEY UPDATE OF c
),
released AS (
    UPDATE courses c SET free = c.free + s.places FROM counters s WHERE c.id = s.id
)
