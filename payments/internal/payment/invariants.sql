-- Returns the rows that violate an invariant of payments. A healthy database has none. All checks are one statement,
-- so that they read one snapshot. The numbers go on from those of orders. Number 4 has a part there, and the part
-- about attempts here. For LATERAL and OFFSET 0 see the invariants of orders.
--
-- $1 how long a check may be overdue, in microseconds
-- $2 false: check the pending orders with a checkout, the ended ones that are not booked, and the refunds that have
-- not ended; true: check all
WITH checked AS (
    SELECT id, status, ended_by, total_cents, currency, expires_at FROM orders
    WHERE status = 'pending' AND ($2::boolean OR hold_until IS NOT NULL)
    UNION ALL
    SELECT id, status, ended_by, total_cents, currency, expires_at FROM orders WHERE NOT booked AND status <> 'pending'
    UNION ALL
    SELECT id, status, ended_by, total_cents, currency, expires_at FROM orders WHERE $2::boolean AND booked
),
attempts AS (
    SELECT a.*
    FROM checked o CROSS JOIN LATERAL (
        SELECT id, amount_cents, captured_cents, applied FROM payment_attempts WHERE order_id = o.id OFFSET 0
    ) AS a
    UNION
    -- The refund may have been owed after its order was booked.
    SELECT a.*
    FROM refunds r CROSS JOIN LATERAL (
        SELECT id, amount_cents, captured_cents, applied FROM payment_attempts WHERE id = r.attempt_id OFFSET 0
    ) AS a
    WHERE r.next_check IS NOT NULL
),
violations AS (
    -- 6: an order that was paid at the provider has exactly one applied success, of its amount and currency. No other
    -- order has one.
    SELECT 6 AS invariant, 'order ' || o.id AS subject,
           format('%s by %s, with %s applied successes', o.status, coalesce(o.ended_by, 'nobody'), a.successes) AS detail
    FROM checked o
    CROSS JOIN LATERAL (
        SELECT count(*) AS successes, bool_or((captured_cents, currency) <> (o.total_cents, lower(o.currency))) AS differs
        FROM payment_attempts
        WHERE order_id = o.id AND applied
    ) AS a
    WHERE a.successes <> CASE WHEN o.status = 'paid' AND o.ended_by = 'provider' THEN 1 ELSE 0 END OR a.differs

    -- 7: captured money that did not pay the order is refunded as a whole, and money that paid it is not.
    UNION ALL
    SELECT 7, 'attempt ' || a.id,
           format('captured %s of %s, applied: %s, refund of %s', a.captured_cents, a.amount_cents, a.applied, coalesce(r.amount_cents, 0))
    FROM attempts a LEFT JOIN LATERAL (SELECT amount_cents FROM refunds WHERE attempt_id = a.id OFFSET 0) AS r ON true
    WHERE CASE WHEN a.applied THEN a.captured_cents <> a.amount_cents OR r.amount_cents IS NOT NULL
               ELSE a.captured_cents <> coalesce(r.amount_cents, 0) END

    -- 8: no check of an attempt or of a refund is overdue by more than the bound.
    UNION ALL
    SELECT 8, 'attempt ' || id, format('%s, its check is overdue by %s', state, now() - next_check)
    FROM payment_attempts
    WHERE next_check < now() - $1::bigint * interval '1 microsecond'
    UNION ALL
    SELECT 8, 'refund ' || id, format('%s, its check is overdue by %s', state, now() - next_check)
    FROM refunds
    WHERE next_check < now() - $1::bigint * interval '1 microsecond'

    -- 4: no attempt is opened at or after the deadline. A deadline never moves to a time before the present, so this
    -- is true at any later time, too.
    UNION ALL
    SELECT 4, 'attempt ' || a.id, format('opened at %s, but the deadline of its order is %s', a.opened_at, o.expires_at)
    FROM checked o CROSS JOIN LATERAL (SELECT id, opened_at FROM payment_attempts WHERE order_id = o.id OFFSET 0) AS a
    WHERE a.opened_at >= o.expires_at
)
SELECT invariant, subject, detail FROM violations ORDER BY invariant, subject LIMIT 1000
