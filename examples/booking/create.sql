-- Writes a booking that was accepted, takes its places, and owes what must happen later: an outbox row for the task
-- that expires the booking, and one for the task that sends its code. The transaction has locked the course.
--
-- @id · @customer · @course · @places · @code · @key: idempotency key, '' for none · @fingerprint, NULL without a key
-- @created and @deadline, by the database's clock · @expire and @send: the kinds of the tasks
WITH created AS (
    INSERT INTO bookings (id, customer_id, course_id, places, code, code_due_at, idempotency_key, fingerprint,
                          created_at, expires_at)
    VALUES (@id::uuid, @customer::uuid, @course::uuid, @places::bigint, @code::text, @created::timestamptz,
            nullif(@key::text, ''), @fingerprint::bytea, @created::timestamptz, @deadline::timestamptz)
),
taken AS (
    UPDATE courses SET free = free - @places::bigint WHERE id = @course::uuid
)
INSERT INTO outbox (kind, task_id, due_at)
VALUES (@expire::text, @id::uuid::text, @deadline::timestamptz), (@send::text, @id::uuid::text, @created::timestamptz)
