-- Moves the deadline of a pending order before it passes, and returns the order in its present state. A later
-- deadline moves the end of a hold by the same time. A held order gets no earlier deadline, because its customer is
-- paying. changed is true if this statement moved the deadline. It returns no row if there is no such order.
-- order.sql follows.
--
-- For an earlier deadline the statement writes the outbox row of the task that cancels the order. A later deadline
-- needs no row: the worker gets the task at the old deadline, and returns it to the queue until the new one.
--
-- The parameters: id of the order · customer, who extends the deadline (NULL: an operator moves it)
-- extension of a customer in microseconds · max_extensions of an order
-- deadline that an operator sets · reason for it
-- least and most microseconds from now to an operator's deadline
-- kind of the task that cancels the order, '' for no outbox row
WITH locked AS MATERIALIZED (
    SELECT * FROM orders WHERE id = @id::uuid AND customer_id = coalesce(@customer::uuid, customer_id) FOR UPDATE
),
clock AS MATERIALIZED (
    -- The clock is read after the lock is taken: somebody who waited for the lock past the deadline is too late.
    SELECT clock_timestamp() AS at FROM locked
),
decided AS MATERIALIZED (
    SELECT *, coalesce(@deadline::timestamptz, expires_at + @extension::bigint * interval '1 microsecond') AS deadline
    FROM locked
),
moved AS (
    UPDATE orders o SET expires_at = d.deadline, hold_until = d.deadline + (d.hold_until - d.expires_at),
        extensions = d.extensions + CASE WHEN @deadline::timestamptz IS NULL THEN 1 ELSE 0 END
    FROM decided d CROSS JOIN clock
    WHERE o.id = d.id AND d.status = 'pending' AND clock.at < d.expires_at
      AND CASE WHEN @deadline::timestamptz IS NULL
          THEN @extension::bigint > 0 AND d.extensions < @max_extensions::bigint
          ELSE d.deadline <> d.expires_at AND (d.hold_until IS NULL OR d.deadline > d.expires_at)
               AND d.deadline BETWEEN clock.at + @least::bigint * interval '1 microsecond'
                                  AND clock.at + @most::bigint * interval '1 microsecond'
          END
    RETURNING o.*
),
event AS (
    INSERT INTO order_events (order_id, type, actor, at, deadline, reason)
    SELECT id, 'rescheduled', CASE WHEN @deadline::timestamptz IS NULL THEN 'customer' ELSE 'operator' END, clock.at,
           expires_at, @reason::text
    FROM moved CROSS JOIN clock
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at)
    SELECT @kind::text, m.id::text, m.due_at FROM moved m JOIN decided d ON d.id = m.id
    WHERE m.expires_at < d.expires_at AND @kind::text <> ''
    ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
),
result AS (
    SELECT *, true AS changed FROM moved
    UNION ALL
    SELECT *, false FROM locked WHERE NOT EXISTS (SELECT FROM moved)
)
