-- Returns a page of the orders with attempts that must be checked, sorted by the time of the check, with the
-- microseconds left until then. It reads all these attempts for each page: they are few, because an attempt lives as
-- long as a customer is paying.
--
-- $1 time and $2 order id of the last row of the previous page (the first page: the year 1 and any id)
-- $3 maximum of the microseconds from now to the check, negative for overdue checks
-- $4 maximum number of rows
SELECT id, due_at, (extract(epoch FROM due_at - clock_timestamp()) * 1000000)::bigint AS left_us
FROM (
    SELECT a.order_id AS id, min(
               least(a.next_check, CASE WHEN NOT a.closing
                   THEN checkout_closes_at(o.expires_at, o.cancel_requested_at, a.checkout_until, a.session_until) END)) AS due_at
    FROM payment_attempts a JOIN orders o ON o.id = a.order_id
    WHERE a.next_check IS NOT NULL
    GROUP BY a.order_id
) AS checks
WHERE (due_at, id) > ($1::timestamptz, $2::uuid)
  AND due_at <= now() + $3::bigint * interval '1 microsecond'
ORDER BY due_at, id
LIMIT $4
