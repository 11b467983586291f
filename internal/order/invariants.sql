-- Returns the rows that violate an invariant. A healthy database has none. All checks are one statement, so that they
-- read one snapshot.
--
-- $1 how long past its due time an order may be pending, in microseconds
WITH reserved AS (
    SELECT i.product_id, sum(i.quantity) AS quantity
    FROM order_items i JOIN orders o ON o.id = i.order_id
    WHERE o.status IN ('pending', 'paid')
    GROUP BY i.product_id
),
trail AS (
    SELECT order_id,
           count(*) FILTER (WHERE type = 'paid')      AS paid,
           count(*) FILTER (WHERE type = 'cancelled') AS cancelled
    FROM order_events
    GROUP BY order_id
),
violations AS (
    -- 1: the supply of a product is its available units plus those of its pending and paid orders.
    SELECT 1 AS invariant, 'product ' || p.id AS subject,
           format('supply %s is not available %s + reserved %s', p.supply, p.available, coalesce(r.quantity, 0)) AS detail
    FROM products p LEFT JOIN reserved r ON r.product_id = p.id
    WHERE p.supply <> p.available + coalesce(r.quantity, 0)

    -- 2: no order is both paid and cancelled, and its trail has the one terminal event of its status.
    UNION ALL
    SELECT 2, 'order ' || o.id,
           format('%s, paid at %s, cancelled at %s, with %s paid and %s cancelled events', o.status,
                  coalesce(o.paid_at::text, 'no time'), coalesce(o.cancelled_at::text, 'no time'),
                  coalesce(t.paid, 0), coalesce(t.cancelled, 0))
    FROM orders o LEFT JOIN trail t ON t.order_id = o.id
    WHERE (o.paid_at IS NOT NULL, o.cancelled_at IS NOT NULL) <> (o.status = 'paid', o.status = 'cancelled')
       OR (coalesce(t.paid, 0), coalesce(t.cancelled, 0)) <> ((o.status = 'paid')::int, (o.status = 'cancelled')::int)

    -- 3: no order is pending longer past its due time than the bound. The due time is the deadline, or the end of a hold.
    UNION ALL
    SELECT 3, 'order ' || id, format('pending %s past its due time', now() - due_at)
    FROM orders
    WHERE status = 'pending' AND due_at < now() - $1::bigint * interval '1 microsecond'

    -- 4: no order is paid at or after its due time, and none is cancelled before it.
    UNION ALL
    SELECT 4, 'order ' || id,
           format('due at %s, paid at %s, cancelled (%s) at %s', due_at, coalesce(paid_at::text, 'no time'),
                  coalesce(cancel_reason, 'no reason'), coalesce(cancelled_at::text, 'no time'))
    FROM orders
    WHERE paid_at >= due_at OR cancelled_at < due_at
)
SELECT invariant, subject, detail FROM violations ORDER BY invariant, subject LIMIT 1000
