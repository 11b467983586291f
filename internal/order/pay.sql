-- Pays a pending order at once, before its deadline, and returns the order in its present state. changed is true if this
-- statement paid the order. Otherwise the order was paid before, or it cannot be paid at once: it is held, its customer
-- asked to cancel it, or it has ended. The statement returns no row if the customer has no such order.
--
-- $1 order id · $2 customer id
WITH locked AS MATERIALIZED (
    SELECT * FROM orders WHERE id = $1::uuid AND customer_id = $2::uuid FOR UPDATE
),
decided AS MATERIALIZED (
    -- The clock is read after the lock is taken: a customer who waited for the lock past the deadline is too late.
    SELECT *, clock_timestamp() AS at FROM locked
),
paid AS (
    -- expires_at = d.expires_at and so on: PostgreSQL first computes the new row from the statement's snapshot and checks
    -- its constraints, and only then follows the row to its latest version. If another session has moved the deadline or
    -- the hold since the snapshot, d.at would violate a constraint with the old values.
    UPDATE orders o SET status = 'paid', paid_at = d.at, ended_by = 'customer',
        expires_at = d.expires_at, checkout_until = d.checkout_until, hold_until = d.hold_until,
        cancel_requested_at = d.cancel_requested_at
    FROM decided d
    WHERE o.id = d.id AND d.status = 'pending' AND d.at < d.expires_at
      AND d.hold_until IS NULL AND d.cancel_requested_at IS NULL
    RETURNING o.id, o.status, o.paid_at
)
SELECT d.id, d.customer_id, coalesce(paid.status, d.status) AS status, d.cancel_reason, d.total_cents, d.currency,
       d.created_at, d.expires_at, d.due_at, d.hold_until,
       CASE WHEN d.hold_until IS NOT NULL THEN greatest(d.expires_at, d.checkout_until) END AS checkout_until, d.cancel_requested_at, d.extended_at,
       coalesce(paid.paid_at, d.paid_at) AS paid_at, d.cancelled_at,
       d.at AS server_time, paid.id IS NOT NULL AS changed, (
    SELECT json_agg(json_build_object('product_id', p.id, 'name', p.name,
                                      'quantity', i.quantity, 'unit_price_cents', i.unit_price_cents) ORDER BY p.id)
    FROM order_items i JOIN products p ON p.id = i.product_id
    WHERE i.order_id = d.id
) AS items
FROM decided d LEFT JOIN paid ON paid.id = d.id
