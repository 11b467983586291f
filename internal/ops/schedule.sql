-- Counts the pending rows of a table by due time: first those that are due before a number of buckets, then those in
-- each bucket, then those that are due later. The buckets begin at multiples of their width, so that a row stays in its
-- bucket while time passes. The statement reads a limited number of entries of the partial index of the pending rows.
--
-- $1 width of a bucket in microseconds
-- $2 number of buckets that have begun
-- $3 number of buckets
-- $4 maximum number of rows that are counted of a bucket
-- $5 maximum number of rows that are counted before the buckets, and of those that are due later
--
-- Columns: at, the present time · from_us, the microseconds from at to the first bucket · counted, the number of rows
-- · covered_us, the microseconds from the start of the bucket to the due time of the last row that is counted
WITH clock AS (
    SELECT at, width, date_bin(width, at, 'epoch') - ($2::bigint - 1) * width AS first
    FROM clock_timestamp() AS at, CAST($1::bigint * interval '1 microsecond' AS interval) AS width
)
SELECT at, (extract(epoch FROM first - at) * 1000000)::bigint AS from_us, counted,
       coalesce(extract(epoch FROM last - (first + (bucket - 1) * width)) * 1000000, 0)::bigint AS covered_us
FROM clock, generate_series(0, $3::bigint + 1) AS bucket, LATERAL (
    SELECT count(*) AS counted, max(due) AS last
    FROM (SELECT {due} AS due FROM {table}
          WHERE status = 'pending'
            AND {due} >= CASE WHEN bucket > 0 THEN first + (bucket - 1) * width ELSE '-infinity' END
            AND {due} < CASE WHEN bucket <= $3 THEN first + bucket * width ELSE 'infinity' END
          ORDER BY {due}, id LIMIT CASE WHEN bucket BETWEEN 1 AND $3 THEN $4::bigint ELSE $5::bigint END) AS soonest
) AS counts
ORDER BY bucket
