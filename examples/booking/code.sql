-- Claims those codes of a batch that are owed and due, so that nobody else sends them until the claim ends, and returns
-- for each code of the batch that is owed: id, customer_id, code, claimed, and left_us, the microseconds until it is
-- due. The code of a booking that has ended, or whose deadline has passed, is not owed.
--
-- $1 ids · $2 how long the claim lasts, in microseconds
WITH locked AS MATERIALIZED (
    -- SKIP LOCKED: a session that has locked a booking is about to end it.
    SELECT id FROM bookings
    WHERE id = ANY ($1::uuid[])
      AND CASE status WHEN 'pending' THEN code_due_at <= clock_timestamp() AND expires_at > clock_timestamp() END
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
claimed AS (
    UPDATE bookings b SET code_due_at = clock_timestamp() + $2::bigint * interval '1 microsecond'
    FROM locked l
    WHERE b.id = l.id
    RETURNING b.id
)
SELECT b.id, b.customer_id, b.code, c.id IS NOT NULL AS claimed,
       (extract(epoch FROM b.code_due_at - clock_timestamp()) * 1000000)::bigint AS left_us
FROM bookings b LEFT JOIN claimed c USING (id)
WHERE b.id = ANY ($1::uuid[])
  AND CASE b.status WHEN 'pending' THEN b.code_due_at IS NOT NULL AND b.expires_at > clock_timestamp() END
ORDER BY b.code_due_at
