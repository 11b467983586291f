-- Returns a page of the refunds that must be checked, sorted by the time of the check, with the microseconds left until
-- then.
--
-- $1 time and $2 id of the last refund of the previous page (the first page: the year 1 and any id)
-- $3 maximum of the microseconds from now to the check, negative for overdue checks
-- $4 maximum number of refunds
SELECT id, next_check AS due_at, (extract(epoch FROM next_check - clock_timestamp()) * 1000000)::bigint AS left_us
FROM refunds
WHERE (next_check, id) > ($1::timestamptz, $2::uuid)
  AND next_check <= now() + $3::bigint * interval '1 microsecond'
ORDER BY next_check, id
LIMIT $4
