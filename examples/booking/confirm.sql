-- Confirms a pending booking before its deadline, and returns the booking in its present state. It returns no row if
-- the customer has no such booking. The constant bookingSQL follows.
--
-- $1 id · $2 customer id · $3 code
WITH locked AS MATERIALIZED (
    SELECT * FROM bookings WHERE id = $1::uuid AND customer_id = $2::uuid FOR UPDATE
),
clock AS MATERIALIZED (
    -- The clock is read after the lock is taken: a customer who waited for the lock past the deadline is too late.
    SELECT clock_timestamp() AS at FROM locked
),
confirmed AS (
    -- expires_at = l.expires_at: PostgreSQL checks the constraints on the row as the statement first saw it, before it
    -- reads the version that a session has committed meanwhile, which may have another deadline.
    UPDATE bookings b SET status = 'confirmed', ended_at = clock.at, ended_by = 'customer', expires_at = l.expires_at
    FROM locked l CROSS JOIN clock
    WHERE b.id = l.id AND l.status = 'pending' AND clock.at < l.expires_at AND l.code = $3::text
    RETURNING b.*
),
result AS (
    SELECT * FROM confirmed
    UNION ALL
    SELECT * FROM locked WHERE NOT EXISTS (SELECT FROM confirmed)
)
