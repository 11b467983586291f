-- Returns the rows that violate an invariant. A healthy database has none. The checks trust no CHECK of the tables,
-- because that of a copy may be wrong.
--
-- $1 how long past its deadline a booking may be pending, in microseconds
-- $2 false: check the courses that have not begun and the bookings that have their places, because all bookings are too
-- many to be read often; true: check all courses and all bookings
WITH checked AS MATERIALIZED (
    SELECT id, capacity, free FROM courses WHERE $2::boolean OR begins_at > now()
),
read AS MATERIALIZED (
    SELECT b.*
    FROM checked c JOIN bookings b ON b.course_id = c.id AND ($2::boolean OR b.status IN ('pending', 'confirmed'))
),
taken AS (
    SELECT course_id AS id, sum(places) AS places FROM read WHERE status IN ('pending', 'confirmed') GROUP BY course_id
),
violations AS (
    -- 1: the capacity of a course is its free places and those of its pending and confirmed bookings.
    SELECT 1 AS invariant, 'course ' || id AS subject,
           format('capacity %s is not free %s + pending and confirmed %s', capacity, free, coalesce(places, 0)) AS detail
    FROM checked LEFT JOIN taken USING (id)
    WHERE capacity <> free + coalesce(places, 0) OR free < 0

    -- 2: no booking is pending longer past its deadline than the bound.
    UNION ALL
    SELECT 2, 'booking ' || id, format('pending %s past its deadline', now() - expires_at)
    FROM bookings
    WHERE status = 'pending' AND expires_at < now() - $1::bigint * interval '1 microsecond'

    -- 3: each booking ends at most once. An ended booking has the time and the actor of its end, and a pending one has
    -- none of them. The fifth wrong code ends a booking.
    UNION ALL
    SELECT 3, 'booking ' || id,
           format('%s by %s at %s after %s wrong codes', status, coalesce(ended_by, 'nobody'),
                  coalesce(ended_at::text, 'no time'), wrong_codes)
    FROM read
    WHERE NOT coalesce(
        (wrong_codes >= 5) = (status = 'refused')
        AND CASE status
            WHEN 'pending' THEN ended_at IS NULL AND ended_by IS NULL
            WHEN 'expired' THEN ended_at IS NOT NULL AND ended_by IN ('worker', 'reconciler')
            ELSE status IN ('confirmed', 'released', 'refused') AND ended_at IS NOT NULL AND ended_by = 'customer'
        END, false)

    -- 4: no booking is ended by its customer at or after its deadline, and none expires before it.
    UNION ALL
    SELECT 4, 'booking ' || id, format('%s at %s, its deadline is %s', status, ended_at, expires_at)
    FROM read
    WHERE CASE status
        WHEN 'expired' THEN ended_at < expires_at
        ELSE status IN ('confirmed', 'released', 'refused') AND ended_at >= expires_at
    END

    -- 5: the code of a pending booking is sent within the bound and half a minute.
    UNION ALL
    SELECT 5, 'booking ' || id, format('its code was not sent for %s', now() - created_at)
    FROM bookings
    WHERE status = 'pending' AND code_due_at IS NOT NULL AND expires_at > now()
      AND created_at < now() - $1::bigint * interval '1 microsecond' - interval '30 s'
)
SELECT invariant, subject, detail FROM violations ORDER BY invariant, subject LIMIT 1000
