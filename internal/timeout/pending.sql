-- Returns a page of the pending rows of a table, sorted by due time, with the microseconds left to each due time by
-- the database's clock. It reads one page of the partial index of the pending rows and nothing else.
--
-- $1 due time and $2 id of the last row of the previous page (the first page: the year 1 and any id)
-- $3 maximum of the microseconds from now to a due time, negative for overdue rows
-- $4 maximum number of rows
SELECT id, {due} AS due_at, (extract(epoch FROM {due} - clock_timestamp()) * 1000000)::bigint AS left_us
FROM {table}
WHERE status = 'pending'
  AND ({due}, id) > ($1::timestamptz, $2::uuid)
  AND {due} <= now() + $3::bigint * interval '1 microsecond'
ORDER BY {due}, id
LIMIT $4
