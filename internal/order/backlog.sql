-- Returns the figure orders: the pending orders, at most 100,000, and the seconds since the earliest of their due
-- times, or 0 if it has not passed. To count millions would take seconds, and the operators' page asks each second.
-- The statement reads only the partial index orders_pending_deadline.
SELECT json_build_object('pending', count(*), 'oldest_overdue_seconds',
                         greatest(0, coalesce(extract(epoch FROM clock_timestamp() - min(due_at)), 0))::float8)
FROM (SELECT due_at FROM orders WHERE status = 'pending' ORDER BY due_at, id LIMIT 100000) AS waiting
