-- Stores that the provider has answered for an attempt that take.sql has taken: nobody waits for the check any more, unless
-- somebody has asked again since then. The next check is later, unless an event has made the attempt due, or another worker
-- has taken it.
--
-- $1 attempt id · $2 when the check was asked for, NULL: nobody waited · $3 next check that take.sql stored
WITH told AS (
    SELECT NOT EXISTS (SELECT FROM payment_attempts WHERE state = 'succeeded' AND told_at IS NULL
                         AND ended_at > now() - interval '30 min') AS well
)
UPDATE payment_attempts a
SET asked_at = CASE WHEN a.asked_at IS DISTINCT FROM $2::timestamptz THEN a.asked_at END,
    next_check = CASE
        -- A closing attempt is asked for until it has ended. After an answer to somebody, one more check follows soon.
        WHEN a.next_check <> $3::timestamptz OR a.closing OR $2::timestamptz IS NOT NULL THEN a.next_check
        -- A webhook reports a payment sooner than these checks, as long as webhooks arrive. A check at the beginning of the
        -- closing is due without regard to this column.
        WHEN told.well AND a.state = 'open' THEN clock.at + interval '10 min' * (0.9 + random() * 0.2)
        ELSE clock.at + least(greatest((clock.at - a.opened_at) / 2, interval '10 s'), interval '5 min')
    END
FROM told, (SELECT clock_timestamp() AS at) AS clock
WHERE a.id = $1::uuid AND a.next_check IS NOT NULL
