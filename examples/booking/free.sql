-- Returns those bookings of a batch none of whose seats another session has locked. It waits for no lock.
--
-- $1 ids
WITH free AS MATERIALIZED (
    SELECT screening_id, seat FROM seats
    WHERE booking_id = ANY ($1::uuid[])
    ORDER BY screening_id, seat
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT batch.id FROM unnest($1::uuid[]) AS batch (id)
WHERE batch.id NOT IN (
    SELECT booking_id FROM seats
    WHERE booking_id = ANY ($1::uuid[]) AND (screening_id, seat) NOT IN (SELECT screening_id, seat FROM free)
)
