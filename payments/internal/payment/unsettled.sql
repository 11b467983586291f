-- Counts the attempts and refunds that have not ended, the failed refunds, and returns the ages of the oldest in
-- seconds. It reads only partial indexes.
SELECT live.creating, live.open, live.closing, live.oldest_closing,
       refund.unconfirmed, refund.oldest_unconfirmed, (SELECT count(*) FROM refunds WHERE state = 'failed') AS failed
FROM (
    SELECT count(*) FILTER (WHERE state = 'creating') AS creating, count(*) FILTER (WHERE state = 'open' AND closing_for <= 0) AS open,
           count(*) FILTER (WHERE state = 'open' AND closing_for > 0) AS closing,
           greatest(0, coalesce(max(closing_for), 0))::float8 AS oldest_closing
    FROM (
        SELECT state, extract(epoch FROM clock_timestamp() - closes_at) AS closing_for
        FROM payment_attempts WHERE state IN ('creating', 'open')
    ) AS attempt
) AS live, (
    SELECT count(*) AS unconfirmed, coalesce(max(extract(epoch FROM clock_timestamp() - created_at)), 0)::float8 AS oldest_unconfirmed
    FROM refunds
    WHERE next_check IS NOT NULL AND state IN ('owed', 'sent')
) AS refund
