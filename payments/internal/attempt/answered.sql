-- Stores that the provider has answered for an attempt that take.sql has taken, and that the attempt goes on. The next
-- check is later, but not later than the beginning of the closing, unless an event has made the attempt due, another
-- worker has taken it, or it is closing: a closing attempt is asked for until it has ended.
--
-- $1 attempt id · $2 next check that take.sql stored
WITH told AS (
    SELECT NOT EXISTS (SELECT FROM payment_attempts WHERE state = 'succeeded' AND told_at IS NULL
                         AND ended_at > now() - interval '30 min') AS well
)
UPDATE payment_attempts a
SET next_check = least(a.closes_at, clock.at + CASE
    -- A webhook reports a payment sooner than these checks, as long as webhooks arrive.
    WHEN told.well AND a.state = 'open' THEN interval '10 min' * (0.9 + random() * 0.2)
    ELSE least(greatest((clock.at - a.opened_at) / 2, interval '10 s'), interval '5 min')
END)
FROM told, (SELECT clock_timestamp() AS at) AS clock
WHERE a.id = $1::uuid AND a.next_check = $2::timestamptz AND a.closes_at > clock.at
