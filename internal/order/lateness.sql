-- Counts the timeouts of the last hour, at most the latest 10,000, and returns how late they were. Each actor has one
-- row for all its timeouts (bucket NULL), and one for each bucket with timeouts. It uses the index orders_timed_out.
--
-- $1 upper bounds of the buckets in seconds
WITH recent AS (
    SELECT ended_by AS actor, extract(epoch FROM cancelled_at - due_at)::float8 AS late
    FROM orders
    WHERE cancel_reason = 'timeout' AND cancelled_at > now() - interval '1 hour'
    ORDER BY cancelled_at DESC
    LIMIT 10000
),
cancelled AS (
    SELECT actor, late, width_bucket(late, $1::float8[]) AS bucket FROM recent
)
SELECT actor, bucket, count(*) AS count, max(late) AS max,
       percentile_cont(0.5)  WITHIN GROUP (ORDER BY late) AS p50,
       percentile_cont(0.99) WITHIN GROUP (ORDER BY late) AS p99
FROM cancelled
GROUP BY GROUPING SETS ((actor), (actor, bucket))
