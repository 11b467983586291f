-- Creates a booking after lock.sql: it takes the seats, all or none, and writes the booking and the outbox row of the
-- task that expires it. It returns why it has created no booking, 'exists' (a booking has the idempotency key
-- already), 'unknown', 'bound' or 'taken', or '' if it has created one. The constant getSQL then returns the booking.
--
-- @id · @customer · @screening · @seats: their names, NULL for any free ones · @count of seats · @code
-- @key: idempotency key, '' for none · @fingerprint, NULL without a key · @timeout in microseconds
-- @kind of the task · @max_open_seats in the customer's pending bookings
WITH clock AS MATERIALIZED (
    -- It is read after the locks of lock.sql are taken, so that the wait for them does not shorten the time to confirm.
    SELECT clock_timestamp() AS at
),
open AS MATERIALIZED (
    -- An overdue booking does not count, because its customer can no longer confirm it. This condition is a FILTER,
    -- so that PostgreSQL does not use the index of the deadlines, which has the bookings of all customers.
    SELECT coalesce(sum(cardinality(b.seats)) FILTER (WHERE b.expires_at > clock.at), 0) AS seats,
           json_agg(b.id) FILTER (WHERE b.expires_at > clock.at) AS ids
    FROM clock LEFT JOIN bookings b ON b.customer_id = @customer::uuid AND b.status = 'pending'
),
checked AS MATERIALIZED (
    SELECT CASE
        WHEN EXISTS (SELECT FROM bookings WHERE customer_id = @customer::uuid AND idempotency_key = @key::text)
            THEN 'exists'
        WHEN NOT EXISTS (SELECT FROM screenings WHERE id = @screening::uuid AND starts_at > clock.at) THEN 'unknown'
        WHEN open.seats + @count::bigint > @max_open_seats::bigint THEN 'bound'
    END AS rejected
    FROM clock CROSS JOIN open
),
wanted AS MATERIALIZED (
    SELECT unnest(@seats::text[]) AS seat
    UNION ALL
    (SELECT seat FROM seats
     WHERE screening_id = @screening::uuid AND booking_id IS NULL AND @seats::text[] IS NULL
     ORDER BY seat LIMIT @count::bigint)
),
free AS MATERIALIZED (
    -- In the order of the key, as in every statement that locks seats, so that no two statements deadlock.
    SELECT screening_id, seat FROM seats
    WHERE screening_id = @screening::uuid AND seat = ANY (ARRAY(SELECT seat FROM wanted)) AND booking_id IS NULL
      AND (SELECT rejected FROM checked) IS NULL
    ORDER BY screening_id, seat
    FOR NO KEY UPDATE
),
created AS (
    INSERT INTO bookings
        (id, customer_id, screening_id, seats, code, idempotency_key, fingerprint, created_at, expires_at)
    SELECT @id::uuid, @customer::uuid, @screening::uuid, free.seats, @code::text, nullif(@key::text, ''),
           @fingerprint::bytea, clock.at, clock.at + @timeout::bigint * interval '1 microsecond'
    FROM (SELECT array_agg(seat ORDER BY seat) AS seats FROM free) AS free CROSS JOIN clock
    WHERE cardinality(free.seats) = @count::bigint
    RETURNING id, expires_at
),
taken AS (
    UPDATE seats s SET booking_id = created.id
    FROM free CROSS JOIN created
    WHERE s.screening_id = free.screening_id AND s.seat = free.seat
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at)
    SELECT @kind::text, id::text, expires_at FROM created
)
SELECT CASE WHEN EXISTS (SELECT FROM created) THEN '' ELSE coalesce(checked.rejected, 'taken') END AS rejected,
       coalesce(open.ids, '[]') AS open
FROM checked CROSS JOIN open
