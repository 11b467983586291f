-- Writes what a method of booking has made of a booking, and returns its places if it has ended without a
-- confirmation. The transaction has locked the booking.
--
-- $1 id · $2 status · $3 wrong codes · $4 time of the end, or NULL
WITH written AS (
    UPDATE bookings
    SET status = $2::text, wrong_codes = $3::bigint, ended_at = $4::timestamptz,
        ended_by = CASE WHEN $4::timestamptz IS NOT NULL THEN 'customer' END
    WHERE id = $1::uuid
    RETURNING course_id, places, status
)
UPDATE courses c SET free = c.free + w.places
FROM written w
WHERE c.id = w.course_id AND w.status IN ('released', 'refused')
