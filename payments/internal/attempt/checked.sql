-- Deletes the outbox row of the task that settles an order, because the check that hear.sql owes is made, unless
-- another attempt of the order must be checked. If the relay has the row, the task will find nothing to do.
--
-- $1 attempt id · $2 order id · $3 id of the task · $4 its kind
DELETE FROM outbox WHERE (kind, task_id) IN (
    SELECT kind, task_id FROM outbox
    WHERE kind = $4 AND task_id = $3 AND NOT EXISTS (
        SELECT FROM payment_attempts WHERE order_id = $2 AND id <> $1 AND next_check IS NOT NULL)
    FOR UPDATE SKIP LOCKED)
