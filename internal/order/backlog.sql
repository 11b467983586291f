-- Counts the pending orders, at most 100,000, and returns the seconds since the earliest of their due times, or 0 if it has not
-- passed. It reads only the partial index orders_pending_deadline.
SELECT count(*) AS pending, greatest(0, coalesce(extract(epoch FROM clock_timestamp() - min(due_at)), 0))::float8 AS oldest_overdue
FROM (SELECT due_at FROM orders WHERE status = 'pending' ORDER BY due_at, id LIMIT 100000) AS waiting
