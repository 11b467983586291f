-- Returns the microseconds until the next check of each order's attempts, for those orders that have one.
--
-- $1 order ids
SELECT a.order_id AS id, (extract(epoch FROM min(
           least(a.next_check, CASE WHEN NOT a.closing
               THEN checkout_closes_at(o.expires_at, o.cancel_requested_at, a.checkout_until, a.session_until) END)
       ) - clock_timestamp()) * 1000000)::bigint AS left_us
FROM payment_attempts a JOIN orders o ON o.id = a.order_id
WHERE a.order_id = ANY ($1::uuid[]) AND a.next_check IS NOT NULL
GROUP BY a.order_id
