-- Takes the attempts of some orders that are due for a check, and moves their next check on, so that no other worker
-- takes them meanwhile. Returns the taken attempts. It skips attempts that another session has locked.
--
-- An attempt is due at its next check. It is also due when its closing begins: at the deadline of its order, or when the
-- customer asks to cancel. Both times may move after the last check. The column closing stores whether the last check
-- found that the attempt is closing. The time of the last check would not be enough: a request to cancel may be committed
-- after the snapshot of a check, although its time is before that check.
--
-- $1 order ids · $2 age from which an attempt is stale, in microseconds
WITH due AS MATERIALIZED (
    SELECT a.id, a.opened_at, a.asked_at, o.expires_at, least(o.expires_at, o.cancel_requested_at) AS closes_at,
           clock_timestamp() AS at
    FROM payment_attempts a JOIN orders o ON o.id = a.order_id
    WHERE a.order_id = ANY ($1::uuid[]) AND a.next_check IS NOT NULL
      AND least(a.next_check, CASE WHEN NOT a.closing THEN least(o.expires_at, o.cancel_requested_at) END) <= now()
    FOR UPDATE OF a SKIP LOCKED
)
UPDATE payment_attempts a
SET closing = due.closes_at <= due.at,
    next_check = CASE
        -- While an attempt is closing, its order holds stock: ask often, and ever less often during a long outage.
        WHEN due.closes_at <= due.at
            THEN due.at + least(greatest((due.at - due.closes_at) / 20, interval '2 s'), interval '1 min')
        -- Somebody waits for the answer.
        WHEN due.asked_at IS NOT NULL THEN due.at + least(greatest((due.at - due.asked_at) / 2, interval '1 s'), interval '30 s')
        -- A webhook usually reports a payment sooner than these checks.
        ELSE least(due.at + least(greatest((due.at - due.opened_at) / 2, interval '10 s'), interval '5 min'), due.expires_at)
    END
FROM due
WHERE a.id = due.id
RETURNING a.id, a.order_id, a.state, coalesce(a.session_id, '') AS session_id, due.closes_at <= due.at AS closing, a.asked_at,
          due.at - due.opened_at >= $2::bigint * interval '1 microsecond' AS stale
