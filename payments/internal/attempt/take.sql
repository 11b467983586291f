-- Takes those of some attempts that are due for a check, and moves their next check on, so that no other worker
-- takes them meanwhile. Returns the taken attempts. It skips attempts that another session has locked.
--
-- The next check that it stores is a lease: if the provider does not answer, or the process ends before it has, the
-- attempt is checked again then. Only an answer moves the next check further away. The lease of an
-- attempt that is not closing yet ends when the closing begins.
--
-- $1 attempt ids · $2 age from which an attempt is stale, in microseconds
WITH due AS MATERIALIZED (
    SELECT a.id, o.status <> 'pending' AS order_ended, clock_timestamp() AS at
    FROM payment_attempts a JOIN orders o ON o.id = a.order_id
    WHERE a.id = ANY ($1::uuid[]) AND a.next_check <= now()
    FOR UPDATE OF a SKIP LOCKED
)
UPDATE payment_attempts a
SET next_check = CASE
    -- While an attempt is closing, its order holds stock: ask often, and ever less often during a long outage.
    WHEN a.closes_at <= d.at
        THEN d.at + least(greatest((d.at - a.closes_at) / 20, interval '2 s'), interval '1 min') * (0.9 + random() * 0.2)
    -- Longer than a handler may take.
    ELSE least(a.closes_at, d.at + interval '10 s' * (1 + random()))
END
FROM due d
WHERE a.id = d.id
RETURNING a.id, a.order_id, a.state, coalesce(a.session_id, '') AS session_id, a.closes_at <= d.at AS closing,
          coalesce(a.told_at > d.at - interval '5 min', false) AS told, a.next_check, d.order_ended,
          d.at - a.opened_at >= $2::bigint * interval '1 microsecond' AS stale
