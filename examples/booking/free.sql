-- Returns those bookings of a batch whose course no other session has locked. It waits for no lock.
--
-- $1 ids
WITH free AS MATERIALIZED (
    SELECT id FROM courses WHERE id IN (SELECT course_id FROM bookings WHERE id = ANY ($1::uuid[]))
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT batch.id FROM unnest($1::uuid[]) AS batch (id)
WHERE NOT EXISTS (SELECT FROM bookings b WHERE b.id = batch.id AND b.course_id NOT IN (SELECT id FROM free))
