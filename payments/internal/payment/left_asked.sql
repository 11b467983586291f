-- Returns the microseconds until the next check that somebody waits for, of each order that has one.
--
-- $1 order ids
SELECT order_id AS id, (extract(epoch FROM min(next_check) - clock_timestamp()) * 1000000)::bigint AS left_us
FROM payment_attempts
WHERE order_id = ANY ($1::uuid[]) AND asked_at IS NOT NULL AND next_check IS NOT NULL
GROUP BY order_id
