-- Creates an invitation and, in the same transaction, the outbox row of the task that expires it. The database's clock
-- gives the times.
--
-- $1 id · $2 e-mail address · $3 time to accept in microseconds · $4 kind of the task
WITH created AS (
    INSERT INTO invitations (id, email, created_at, expires_at)
    SELECT $1::uuid, $2::text, at, at + $3::bigint * interval '1 microsecond' FROM clock_timestamp() AS at
    RETURNING id, email, status, created_at, expires_at
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at) SELECT $4::text, id::text, expires_at FROM created
)
-- The columns are named: with *, the statements that sessions have prepared would fail when a migration adds a column.
SELECT id, email, status, created_at, expires_at, clock_timestamp() AS server_time FROM created
