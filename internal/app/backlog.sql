-- Returns the number of pending rows of a table, at most 100,000, and the seconds since the earliest of their due
-- times, or 0 if that time has not passed. It does not count more rows, because to count millions would take seconds,
-- and the operators' page asks each second.
-- The statement reads only the partial index of the pending rows.
SELECT json_build_object('pending', count(*), 'oldest_overdue_seconds',
                         greatest(0, coalesce(extract(epoch FROM clock_timestamp() - min({due})), 0))::float8)
FROM (SELECT {due} FROM {table} WHERE status = 'pending' ORDER BY {due}, id LIMIT 100000) AS waiting
