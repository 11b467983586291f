-- Counts the ended orders that are not booked, at most 100,000, and returns the seconds since the first of them ended,
-- or 0 if there is none. It reads only the orders of the partial index orders_not_booked.
SELECT count(*) AS orders, greatest(0, coalesce(extract(epoch FROM clock_timestamp() - min(ended_at)), 0))::float8 AS oldest
FROM (
    SELECT coalesce(paid_at, cancelled_at) AS ended_at FROM orders
    WHERE NOT booked AND status <> 'pending'
    ORDER BY id
    LIMIT 100000
) AS waiting
