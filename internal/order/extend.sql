-- Extends the deadline of a pending order once, before it passes. If the order is held, the time from the end of its
-- checkout to the end of its hold, which the package that holds it knows, stays the same. It returns the order in its
-- present state. changed is true if this statement extended the deadline. The statement returns no row if
-- the customer has no such order. It owes no task: the worker gets the task at the
-- old deadline, and returns it to the queue until the new one.
--
-- $1 order id · $2 customer id · $3 extension in microseconds; 0: no order can be extended
WITH locked AS MATERIALIZED (
    SELECT * FROM orders WHERE id = $1::uuid AND customer_id = $2::uuid FOR UPDATE
),
decided AS MATERIALIZED (
    -- The clock is read after the lock is taken: a customer who waited for the lock past the deadline is too late.
    SELECT *, clock_timestamp() AS at, $3::bigint * interval '1 microsecond' AS extension FROM locked
),
extended AS (
    UPDATE orders o SET extended_at = d.at, expires_at = d.expires_at + d.extension, checkout_until = d.checkout_until,
        hold_until = greatest(d.expires_at + d.extension, d.checkout_until) + (d.hold_until - greatest(d.expires_at, d.checkout_until))
    FROM decided d
    WHERE o.id = d.id AND d.status = 'pending' AND d.at < d.expires_at
      AND $3::bigint > 0 AND d.extended_at IS NULL AND d.cancel_requested_at IS NULL
    RETURNING o.id, o.extended_at, o.expires_at, o.hold_until, o.due_at
),
event AS (
    INSERT INTO order_events (order_id, type, actor, at)
    SELECT id, 'extended', 'customer', extended_at FROM extended
)
SELECT d.id, d.customer_id, d.status, d.cancel_reason, d.total_cents, d.currency, d.created_at,
       coalesce(e.expires_at, d.expires_at) AS expires_at, coalesce(e.due_at, d.due_at) AS due_at,
       coalesce(e.hold_until, d.hold_until) AS hold_until,
       CASE WHEN d.hold_until IS NOT NULL THEN greatest(coalesce(e.expires_at, d.expires_at), d.checkout_until) END AS checkout_until,
       d.cancel_requested_at,
       coalesce(e.extended_at, d.extended_at) AS extended_at, d.paid_at, d.cancelled_at,
       d.at AS server_time, e.id IS NOT NULL AS changed, (
    SELECT json_agg(json_build_object('product_id', p.id, 'name', p.name,
                                      'quantity', i.quantity, 'unit_price_cents', i.unit_price_cents) ORDER BY p.id)
    FROM order_items i JOIN products p ON p.id = i.product_id
    WHERE i.order_id = d.id
) AS items
FROM decided d LEFT JOIN extended e ON e.id = d.id
