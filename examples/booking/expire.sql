-- Expires those bookings of a batch that are pending and past their deadlines, and releases their seats. It is
-- idempotent. It waits at most 500 ms for a seat that another session has locked, because the other bookings of the
-- batch must not wait long. It is the TimeOut of timeout.Rows.
--
-- $1 ids · $2 actor: the worker or the reconciler
WITH setting AS MATERIALIZED (
    SELECT set_config('lock_timeout', '500', true)
),
locked AS MATERIALIZED (
    -- The count makes PostgreSQL evaluate setting first.
    -- SKIP LOCKED: a session that has locked a booking is about to confirm it. The rest of the batch need not wait.
    -- CASE: PostgreSQL cannot use the index of pending bookings for this condition, so it reads the bookings by their
    -- ids. With the plain conditions it may read, for each batch, all bookings that are due.
    SELECT id, expires_at FROM bookings
    WHERE id = ANY ($1::uuid[]) AND CASE status WHEN 'pending' THEN expires_at <= now() END
      AND (SELECT count(*) FROM setting) = 1
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
held AS MATERIALIZED (
    -- In the order of the key, as in every statement that locks seats, so that no two statements deadlock.
    SELECT screening_id, seat FROM seats
    WHERE booking_id = ANY (ARRAY(SELECT id FROM locked))
    ORDER BY screening_id, seat
    FOR NO KEY UPDATE
),
released AS (
    UPDATE seats s SET booking_id = NULL FROM held h WHERE s.screening_id = h.screening_id AND s.seat = h.seat
),
ended AS (
    -- expires_at = l.expires_at: for the reason in confirm.sql.
    UPDATE bookings b
    SET status = 'expired', ended_at = clock_timestamp(), ended_by = $2::text, expires_at = l.expires_at
    FROM locked l
    WHERE b.id = l.id
    RETURNING b.id, b.expires_at AS due_at, b.ended_at
)
