-- Cancels a pending booking for its customer before its deadline, releases its seats, and returns the booking in its
-- present state. It returns no row if the customer has no such booking. The constant bookingSQL follows.
--
-- $1 id · $2 customer id · $3 lock_timeout
WITH setting AS MATERIALIZED (
    SELECT set_config('lock_timeout', $3::text, true)
),
locked AS MATERIALIZED (
    -- The count makes PostgreSQL evaluate setting first.
    SELECT * FROM bookings
    WHERE id = $1::uuid AND customer_id = $2::uuid AND (SELECT count(*) FROM setting) = 1
    FOR UPDATE
),
clock AS MATERIALIZED (
    -- The clock is read after the lock is taken, as in confirm.sql.
    SELECT clock_timestamp() AS at FROM locked
),
cancelled AS (
    -- expires_at = l.expires_at: see rule 6 in docs/make-it-yours.md.
    UPDATE bookings b SET status = 'cancelled', ended_at = clock.at, ended_by = 'customer', expires_at = l.expires_at
    FROM locked l CROSS JOIN clock
    WHERE b.id = l.id AND l.status = 'pending' AND clock.at < l.expires_at
    RETURNING b.*
),
held AS MATERIALIZED (
    -- In the order of the key, as in every statement that locks seats, so that no two statements deadlock.
    SELECT screening_id, seat FROM seats
    WHERE booking_id = (SELECT id FROM cancelled)
    ORDER BY screening_id, seat
    FOR NO KEY UPDATE
),
released AS (
    UPDATE seats s SET booking_id = NULL FROM held h WHERE s.screening_id = h.screening_id AND s.seat = h.seat
),
result AS (
    SELECT * FROM cancelled
    UNION ALL
    SELECT * FROM locked WHERE NOT EXISTS (SELECT FROM cancelled)
)
