-- Expires those invitations of a batch that are pending and past their deadlines, and returns the state of each
-- invitation of the batch. It is idempotent.
--
-- $1 ids · $2 actor: the worker or the reconciler
WITH locked AS MATERIALIZED (
    -- SKIP LOCKED: a session that has locked an invitation is about to accept it. The rest of the batch need not wait.
    -- CASE: so that PostgreSQL does not read all due invitations for each batch; see
    -- rule 23 in docs/make-it-yours.md.
    SELECT id FROM invitations
    WHERE id = ANY ($1::uuid[]) AND CASE status WHEN 'pending' THEN expires_at <= now() END
    ORDER BY id
    FOR UPDATE SKIP LOCKED
),
expired AS (
    UPDATE invitations i SET status = 'expired', ended_at = clock_timestamp(), expired_by = $2::text
    FROM locked l
    WHERE i.id = l.id
    RETURNING i.id, i.expires_at, i.ended_at
)
SELECT batch.id,
       -- the states of reconcile.RowState
       CASE
           WHEN e.id IS NOT NULL      THEN 'timed_out'
           WHEN i.id IS NULL          THEN 'gone'
           WHEN i.status <> 'pending' THEN 'already_ended'
           WHEN i.expires_at > now()  THEN 'not_due'
           ELSE 'locked'
       END AS state,
       -- microseconds from the deadline to the expiry, and from now to the deadline
       coalesce(extract(epoch FROM e.ended_at - e.expires_at) * 1000000, 0)::bigint AS late_us,
       greatest(coalesce(extract(epoch FROM i.expires_at - clock_timestamp()) * 1000000, 0), 0)::bigint AS left_us
FROM unnest($1::uuid[]) AS batch (id)
LEFT JOIN invitations i ON i.id = batch.id
LEFT JOIN expired e ON e.id = batch.id
