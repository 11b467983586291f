-- Returns the microseconds until the next check of each order's attempts, for those orders that have one.
--
-- $1 order ids
SELECT order_id AS id, (extract(epoch FROM min(next_check) - clock_timestamp()) * 1000000)::bigint AS left_us
FROM payment_attempts
WHERE order_id = ANY ($1::uuid[]) AND next_check IS NOT NULL
GROUP BY order_id
