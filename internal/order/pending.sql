-- Returns a page of the pending orders, sorted by due time, with the microseconds left to each due time by the
-- database's clock. It reads one page of the partial index orders_pending_deadline and nothing else.
--
-- $1 due time and $2 id of the last order of the previous page (the first page: the year 1 and any id)
-- $3 maximum of the microseconds from now to a due time, negative for overdue orders
-- $4 maximum number of orders
SELECT id, due_at, (extract(epoch FROM due_at - clock_timestamp()) * 1000000)::bigint AS left_us
FROM orders
WHERE status = 'pending'
  AND (due_at, id) > ($1::timestamptz, $2::uuid)
  AND due_at <= now() + $3::bigint * interval '1 microsecond'
ORDER BY due_at, id
LIMIT $4
