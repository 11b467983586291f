-- Returns how late the timeouts of the last hour were, at most the latest 10,000, in seconds. A bucket of the histogram
-- counts the timeouts that were late by less than below_seconds, and that no earlier bucket counts; the last bucket
-- counts the rest.
WITH bounds AS (
    SELECT '{.002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 30}'::float8[] AS below
),
timed_out AS (
    SELECT actor, extract(epoch FROM ended_at - due_at)::float8 AS late
    FROM ({timeouts}) AS timeouts
    WHERE ended_at > now() - interval '1 hour'
    ORDER BY ended_at DESC
    LIMIT 10000
),
actors AS (
    SELECT actor, jsonb_build_object(
        'count', count(late), 'max_seconds', coalesce(max(late), 0),
        'p50_seconds', coalesce(percentile_cont(0.5)  WITHIN GROUP (ORDER BY late), 0),
        'p99_seconds', coalesce(percentile_cont(0.99) WITHIN GROUP (ORDER BY late), 0)) AS figures
    FROM unnest('{worker, reconciler}'::text[]) AS actor LEFT JOIN timed_out USING (actor)
    GROUP BY actor
),
buckets AS (
    SELECT width_bucket(late, below) + 1 AS bucket, count(*) FILTER (WHERE actor = 'worker') AS worker,
           count(*) FILTER (WHERE actor = 'reconciler') AS reconciler
    FROM timed_out CROSS JOIN bounds
    GROUP BY 1
)
SELECT jsonb_object_agg(actor, figures) || jsonb_build_object('histogram', (
    SELECT jsonb_agg(jsonb_build_object('below_seconds', below[bucket], 'worker', coalesce(worker, 0),
                                        'reconciler', coalesce(reconciler, 0)) ORDER BY bucket)
    FROM bounds CROSS JOIN generate_series(1, cardinality(below) + 1) AS bucket LEFT JOIN buckets USING (bucket)))
FROM actors
