-- Returns the invitations that violate an invariant. A healthy database has none. The checks do not trust the
-- constraint invitations_status, because that of a copy may be wrong.
--
-- $1 how long past its deadline an invitation may be pending, in microseconds
-- $2 false: check the pending invitations, because all are too many to be read often; true: check all invitations
WITH checked AS (
    SELECT * FROM invitations WHERE $2::boolean OR status = 'pending'
),
violations AS (
    -- 1: no invitation is pending longer past its deadline than the bound.
    SELECT 1 AS invariant, 'invitation ' || id AS subject,
           format('pending %s past its deadline', now() - expires_at) AS detail
    FROM checked
    WHERE status = 'pending' AND expires_at < now() - $1::bigint * interval '1 microsecond'

    -- 2: each invitation ends at most once. An ended invitation has the time of its end, and an expired one also the
    -- actor. A pending one has none of them.
    UNION ALL
    SELECT 2, 'invitation ' || id,
           format('%s at %s, expired by %s',
                  status, coalesce(ended_at::text, 'no time'), coalesce(expired_by, 'nobody'))
    FROM checked
    WHERE NOT coalesce(
        CASE status
            WHEN 'pending'  THEN ended_at IS NULL AND expired_by IS NULL
            WHEN 'accepted' THEN ended_at IS NOT NULL AND expired_by IS NULL
            WHEN 'expired'  THEN ended_at IS NOT NULL AND expired_by IN ('worker', 'reconciler')
        END, false)

    -- 3: no invitation is accepted at or after its deadline, and none expires before it.
    UNION ALL
    SELECT 3, 'invitation ' || id, format('%s at %s, its deadline is %s', status, ended_at, expires_at)
    FROM checked
    WHERE CASE status WHEN 'accepted' THEN ended_at >= expires_at WHEN 'expired' THEN ended_at < expires_at END
)
SELECT invariant, subject, detail FROM violations ORDER BY invariant, subject LIMIT 1000
