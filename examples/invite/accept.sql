-- Accepts a pending invitation before its deadline, and returns the invitation in its present state. It returns no row
-- if there is no such invitation.
--
-- $1 id
WITH locked AS MATERIALIZED (
    SELECT * FROM invitations WHERE id = $1::uuid FOR UPDATE
),
decided AS MATERIALIZED (
    -- The clock is read after the lock is taken: a caller who waited for the lock past the deadline is too late.
    SELECT *, clock_timestamp() AS at FROM locked
),
accepted AS (
    -- expires_at = d.expires_at: PostgreSQL checks the constraints on the row as the statement first saw it, before it
    -- reads the version that a session has committed meanwhile, which may have another deadline.
    UPDATE invitations i SET status = 'accepted', ended_at = d.at, expires_at = d.expires_at
    FROM decided d
    WHERE i.id = d.id AND d.status = 'pending' AND d.at < d.expires_at
    RETURNING i.id, i.status, i.ended_at
)
SELECT d.id, d.email, coalesce(a.status, d.status) AS status, d.created_at, d.expires_at,
       coalesce(a.ended_at, d.ended_at) AS ended_at, d.at AS server_time
FROM decided d LEFT JOIN accepted a ON a.id = d.id
