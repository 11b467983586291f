-- Returns a page of the orders with attempts that must be checked, sorted by the time of the check, with the
-- microseconds left until then. It reads all these attempts for each page: they are few, because an attempt lives as
-- long as a customer is paying.
--
-- $1 time and $2 order id of the last row of the previous page (the first page: the year 1 and any id)
-- $3 maximum of the microseconds from now to the check, negative for overdue checks
-- $4 maximum number of rows
SELECT id, due_at, (extract(epoch FROM due_at - clock_timestamp()) * 1000000)::bigint AS left_us
FROM (SELECT order_id AS id, min(next_check) AS due_at FROM payment_attempts WHERE next_check IS NOT NULL GROUP BY order_id) AS checks
WHERE (due_at, id) > ($1::timestamptz, $2::uuid)
  AND due_at <= now() + $3::bigint * interval '1 microsecond'
ORDER BY due_at, id
LIMIT $4
