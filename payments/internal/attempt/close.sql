-- Closes an attempt that its customer can no longer pay, and releases its order, which is then due at its deadline. The
-- cancel task that the statement owes is the
-- only way in which the order is cancelled. Returns the order, or no row if the attempt is not in the expected state.
--
-- $1 attempt id · $2 expected state · $3 kind of the cancel task, '' for no outbox row · $4 actor of the event · $5
-- kind of the settle task
WITH locked AS MATERIALIZED (
    SELECT * FROM orders WHERE id = (SELECT order_id FROM payment_attempts WHERE id = $1::uuid) FOR UPDATE
),
decided AS MATERIALIZED (
    SELECT *, clock_timestamp() AS at FROM locked
),
closed AS (
    UPDATE payment_attempts a
    SET state = 'closed', closing = true, ended_at = d.at, next_check = NULL, checkout_url = NULL
    FROM decided d
    WHERE a.id = $1::uuid AND a.state = $2::text
    RETURNING a.order_id
),
released AS (
    UPDATE orders o SET hold_until = NULL, expires_at = d.expires_at
    FROM decided d JOIN closed ON closed.order_id = d.id
    WHERE o.id = d.id AND d.status = 'pending'
    RETURNING o.id, o.due_at
),
event AS (
    INSERT INTO order_events (order_id, type, actor, at)
    SELECT r.id, 'released', $4::text, d.at FROM released r JOIN decided d ON d.id = r.id
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at)
    SELECT $3::text, id::text, due_at FROM released WHERE $3::text <> ''
    ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
),
done AS (
    -- The check that hear.sql owes is made. If the relay has the row, the task will find nothing to do.
    DELETE FROM outbox WHERE (kind, task_id) IN (
        SELECT x.kind, x.task_id FROM outbox x JOIN closed c ON x.task_id = c.order_id::text
        WHERE x.kind = $5::text AND NOT EXISTS (
            SELECT FROM payment_attempts WHERE order_id = c.order_id AND id <> $1::uuid AND next_check IS NOT NULL)
        FOR UPDATE OF x SKIP LOCKED)
)
SELECT d.id AS order_id, d.customer_id, r.due_at AS cancel_due_at, clock_timestamp() AS server_time
FROM closed JOIN decided d ON d.id = closed.order_id LEFT JOIN released r ON r.id = d.id
