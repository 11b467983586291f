-- Locks the next payments of removed orders that are old enough to be deleted, so that no refund of them is stored meanwhile.
--
-- $1 age, in microseconds · $2 and $3 the last payment that was locked before: its end and id · $4 limit
SELECT id, ended_at FROM payment_attempts
WHERE order_id IS NULL AND ended_at < now() - $1::bigint * interval '1 microsecond' AND (ended_at, id) > ($2::timestamptz, $3::uuid)
ORDER BY ended_at, id LIMIT $4
FOR UPDATE
