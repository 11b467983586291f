-- Returns the rows that violate an invariant. A healthy database has none. The constraint bookings_status excludes a
-- late confirmation, an early expiry and a second end, so no check looks for them.
--
-- $1 how long past its deadline a booking may be pending, in microseconds
-- $2 false: check the seats of the screenings that have not begun; true: check those of all screenings
WITH checked AS MATERIALIZED (
    SELECT id FROM screenings WHERE $2::boolean OR starts_at > now()
),
held AS (
    SELECT b.screening_id, seat, b.id AS booking_id
    FROM checked c JOIN bookings b ON b.screening_id = c.id AND b.status IN ('pending', 'confirmed')
    CROSS JOIN unnest(b.seats) AS seat
),
taken AS (
    SELECT s.screening_id, s.seat, s.booking_id
    FROM checked c JOIN seats s ON s.screening_id = c.id
    WHERE s.booking_id IS NOT NULL
),
violations AS (
    -- 1: each seat of a pending or confirmed booking has exactly this booking, and all other seats are free.
    SELECT 1 AS invariant, format('seat %s of screening %s', seat, screening_id) AS subject,
           format('its booking is %s, and it is a seat of the pending or confirmed booking %s',
                  coalesce(t.booking_id::text, 'none'), coalesce(h.booking_id::text, 'none')) AS detail
    FROM held h FULL JOIN taken t USING (screening_id, seat)
    WHERE h.booking_id IS DISTINCT FROM t.booking_id

    -- 2: no booking is pending longer past its deadline than the bound.
    UNION ALL
    SELECT 2, 'booking ' || id, format('pending %s past its deadline', now() - expires_at)
    FROM bookings
    WHERE status = 'pending' AND expires_at < now() - $1::bigint * interval '1 microsecond'
)
SELECT invariant, subject, detail FROM violations ORDER BY invariant, subject LIMIT 1000
