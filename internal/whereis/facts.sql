-- Returns the state of an order by the database's clock, and who ended it.
--
-- $1 id
SELECT status, due_at, hold_until IS NOT NULL AS held, coalesce(paid_at, cancelled_at) AS ended_at,
       coalesce(ended_by, (SELECT actor FROM order_events WHERE order_id = o.id AND type IN ('paid', 'cancelled')), '') AS ended_by,
       clock_timestamp() AS at
FROM orders o WHERE id = $1
