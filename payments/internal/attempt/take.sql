-- Takes the attempts of some orders that are due for a check, and moves their next check on, so that no other worker
-- takes them meanwhile. Returns the taken attempts. It skips attempts that another session has locked.
--
-- The next check that it stores is a lease: if the provider does not answer, or the process ends before it has, the
-- attempt is checked again then. Only an answer moves the next check further away; see answered.sql.
--
-- An attempt is due at its next check. It is also due when its closing begins; see checkout_closes_at. This time may
-- move after the last check. The column closing stores whether the last check found that the attempt is closing.
--
-- $1 order ids · $2 age from which an attempt is stale, in microseconds
WITH due AS MATERIALIZED (
    SELECT a.id, a.order_id, a.opened_at, a.checkout_until, a.session_until, a.closing AS was_closing, o.status <> 'pending' AS order_ended,
           checkout_closes_at(o.expires_at, a.checkout_until, a.session_until) AS closes_at,
           clock_timestamp() AS at
    FROM payment_attempts a JOIN orders o ON o.id = a.order_id
    WHERE a.order_id = ANY ($1::uuid[]) AND a.next_check IS NOT NULL
      AND least(a.next_check, CASE WHEN NOT a.closing
          THEN checkout_closes_at(o.expires_at, a.checkout_until, a.session_until) END) <= now()
    FOR UPDATE OF a SKIP LOCKED
),
fixed AS MATERIALIZED (
    -- An extension reads the clock before the deadline, and may commit after it. An attempt whose closing has begun
    -- is not opened again, so the order is read again, with a lock that conflicts with that of an extension. The
    -- statement waits for no lock: if another session has locked the order, the attempt is left out, and taken some
    -- milliseconds later. An attempt that is closing already needs no lock.
    SELECT due.id, checkout_closes_at(o.expires_at, due.checkout_until, due.session_until) AS closes_at
    FROM orders o JOIN due ON due.order_id = o.id
    WHERE NOT due.was_closing AND due.closes_at <= due.at
    FOR SHARE OF o SKIP LOCKED
),
decided AS MATERIALIZED (
    SELECT due.id, due.order_id, due.opened_at, coalesce(fixed.closes_at, due.closes_at) AS closes_at, clock.at, due.order_ended,
           due.was_closing OR coalesce(fixed.closes_at <= clock.at, false) AS closing -- never without the lock
    FROM due LEFT JOIN fixed ON fixed.id = due.id
    -- The clock is read after the orders are locked.
    CROSS JOIN (SELECT clock_timestamp() AS at FROM (SELECT count(*) FROM fixed) AS locked) AS clock
    WHERE due.was_closing OR due.closes_at > due.at OR fixed.id IS NOT NULL
)
UPDATE payment_attempts a
SET closing = d.closing,
    next_check = d.at + CASE
        -- While an attempt is closing, its order holds stock: ask often, and ever less often during a long outage.
        WHEN d.closing THEN least(greatest((d.at - d.closes_at) / 20, interval '2 s'), interval '1 min') * (0.9 + random() * 0.2)
        -- An event has told that the customer has most likely paid.
        WHEN a.told_at IS NOT NULL THEN least(greatest((d.at - a.told_at) / 2, interval '1 s'), interval '30 s')
        -- Longer than a handler may take.
        ELSE interval '10 s' * (1 + random())
    END
FROM decided d
WHERE a.id = d.id
RETURNING a.id, a.order_id, a.state, coalesce(a.session_id, '') AS session_id, a.closing,
          a.told_at IS NOT NULL OR coalesce(a.hinted_at > d.at - interval '1 min', false) AS told, a.next_check, d.order_ended,
          d.at - d.opened_at >= $2::bigint * interval '1 microsecond' AS stale
