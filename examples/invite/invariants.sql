-- Returns the invitations that violate an invariant. A healthy database has none. The constraint invitations_status
-- excludes a late acceptance and an early expiry, so no check looks for them.
--
-- $1 how long past its deadline an invitation may be pending, in microseconds
SELECT 1 AS invariant, 'invitation ' || id AS subject, format('pending %s past its deadline', now() - expires_at) AS detail
FROM invitations
WHERE status = 'pending' AND expires_at < now() - $1::bigint * interval '1 microsecond'
ORDER BY expires_at
LIMIT 1000
