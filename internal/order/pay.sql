-- Pays a pending order at once, before its deadline, and returns the order in its present state. changed is true if
-- this statement paid the order. Otherwise the order was paid before, or it cannot be paid at once: it is held, or it
-- has ended. The statement returns no row if the customer has no such order.
-- order.sql follows.
--
-- $1 order id · $2 customer id
WITH locked AS MATERIALIZED (
    SELECT * FROM orders WHERE id = $1::uuid AND customer_id = $2::uuid FOR UPDATE
),
clock AS MATERIALIZED (
    -- The clock is read after the lock is taken: a customer who waited for the lock past the deadline is too late.
    SELECT clock_timestamp() AS at FROM locked
),
paid AS (
    -- expires_at = l.expires_at and so on: PostgreSQL first computes the new row from the statement's snapshot and
    -- checks its constraints, and only then follows the row to its latest version. If another session has moved the
    -- deadline or the hold since the snapshot, clock.at would violate a constraint with the old values.
    UPDATE orders o SET status = 'paid', paid_at = clock.at, ended_by = 'customer',
        expires_at = l.expires_at, hold_until = l.hold_until
    FROM locked l CROSS JOIN clock
    WHERE o.id = l.id AND l.status = 'pending' AND clock.at < l.expires_at AND l.hold_until IS NULL
    RETURNING o.*
),
result AS (
    SELECT *, true AS changed FROM paid
    UNION ALL
    SELECT *, false FROM locked WHERE NOT EXISTS (SELECT FROM paid)
)
