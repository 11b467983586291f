-- Returns the rows that violate an invariant. A healthy database has none. The checks trust no CHECK of the tables,
-- because that of a copy may be wrong.
--
-- $1 how long past its deadline a booking may be pending, in microseconds
-- $2 false: check the screenings that have not begun and the bookings that hold their seats, because all bookings are
-- too many to be read often; true: check all screenings and all bookings
WITH checked AS MATERIALIZED (
    SELECT id FROM screenings WHERE $2::boolean OR starts_at > now()
),
read AS (
    SELECT b.*
    FROM checked c JOIN bookings b ON b.screening_id = c.id AND ($2::boolean OR b.status IN ('pending', 'confirmed'))
),
held AS (
    SELECT screening_id, seat, id AS booking_id
    FROM read CROSS JOIN unnest(seats) AS seat
    WHERE status IN ('pending', 'confirmed')
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

    -- 3: each booking ends at most once. An ended booking has the time and the actor of its end, and a pending one has
    -- none of them.
    UNION ALL
    SELECT 3, 'booking ' || id,
           format('%s by %s at %s', status, coalesce(ended_by, 'nobody'), coalesce(ended_at::text, 'no time'))
    FROM read
    WHERE NOT coalesce(
        CASE status
            WHEN 'pending'   THEN ended_at IS NULL AND ended_by IS NULL
            WHEN 'confirmed' THEN ended_at IS NOT NULL AND ended_by = 'customer'
            WHEN 'expired'   THEN ended_at IS NOT NULL AND ended_by IN ('worker', 'reconciler')
        END, false)

    -- 4: no booking is confirmed at or after its deadline, and none expires before it.
    UNION ALL
    SELECT 4, 'booking ' || id, format('%s at %s, its deadline is %s', status, ended_at, expires_at)
    FROM read
    WHERE CASE status WHEN 'confirmed' THEN ended_at >= expires_at WHEN 'expired' THEN ended_at < expires_at END
)
SELECT invariant, subject, detail FROM violations ORDER BY invariant, subject LIMIT 1000
