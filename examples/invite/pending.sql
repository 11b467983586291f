-- Reads a page of the pending invitations, sorted by deadline, for the reconciler.
--
-- $1 deadline and $2 id of the last invitation of the previous page (the first page: the year 1 and any id)
-- $3 maximum of the microseconds from now to a deadline, negative for overdue invitations
-- $4 maximum number of invitations
SELECT id, expires_at AS due_at, (extract(epoch FROM expires_at - clock_timestamp()) * 1000000)::bigint AS left_us
FROM invitations
WHERE status = 'pending'
  AND (expires_at, id) > ($1::timestamptz, $2::uuid)
  AND expires_at <= now() + $3::bigint * interval '1 microsecond'
ORDER BY expires_at, id
LIMIT $4
