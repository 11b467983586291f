-- Expires those invitations of a batch that are pending and past their deadlines. It is idempotent. It is the TimeOut
-- of timeout.Rows.
--
-- $1 ids · $2 actor: the worker or the reconciler
WITH locked AS MATERIALIZED (
    -- SKIP LOCKED: a session that has locked an invitation is about to accept it. The rest of the batch need not wait.
    -- CASE: PostgreSQL cannot use the index of pending invitations for this condition, so it reads the invitations by
    -- their ids. With the plain conditions it may read, for each batch, all invitations that are due.
    SELECT id FROM invitations
    WHERE id = ANY ($1::uuid[]) AND CASE status WHEN 'pending' THEN expires_at <= now() END
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
ended AS (
    UPDATE invitations i SET status = 'expired', ended_at = clock_timestamp(), expired_by = $2::text
    FROM locked l
    WHERE i.id = l.id
    RETURNING i.id, i.expires_at AS due_at, i.ended_at
)
