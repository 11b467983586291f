-- Returns the rows that violate an invariant. A healthy database has none. All checks are one statement, so that they
-- read one snapshot. OFFSET 0, and an aggregate in a LATERAL subquery, make PostgreSQL look up the rows of each checked
-- order by an index, because a join may read whole tables, however few orders are checked.
--
-- $1 how long past its due time an order may be pending, in microseconds
-- $2 false: check the orders that are pending or not booked; true: check also the booked ones and the books
WITH ended AS (
    SELECT id, status, booked, paid_at, cancelled_at, ended_by, cancel_reason, due_at FROM orders WHERE NOT booked AND status <> 'pending'
    UNION ALL
    SELECT id, status, booked, paid_at, cancelled_at, ended_by, cancel_reason, due_at FROM orders WHERE $2::boolean AND booked
),
taken AS (
    SELECT id, status, booked FROM orders WHERE status = 'pending'
    UNION ALL
    SELECT id, status, booked FROM ended WHERE status = 'paid'
),
reserved AS MATERIALIZED ( -- otherwise PostgreSQL sorts the items before it sums them up
    SELECT i.product_id,
           sum(i.quantity) FILTER (WHERE t.status = 'pending')                  AS pending,
           sum(i.quantity) FILTER (WHERE t.status = 'paid' AND NOT t.booked)    AS not_booked,
           sum(i.quantity) FILTER (WHERE t.status = 'paid' AND t.booked)        AS booked
    FROM taken t CROSS JOIN LATERAL (SELECT product_id, quantity FROM order_items WHERE order_id = t.id OFFSET 0) i
    GROUP BY i.product_id
),
stock AS (
    SELECT p.id, p.supply, p.available, coalesce(b.sold, 0) AS sold, coalesce(b.removed, 0) AS removed,
           coalesce(r.pending, 0) AS pending, coalesce(r.not_booked, 0) AS not_booked, coalesce(r.booked, 0) AS booked
    FROM products p
    LEFT JOIN stock_books b ON b.product_id = p.id
    LEFT JOIN reserved r ON r.product_id = p.id
),
violations AS (
    -- 1: the supply of a product is its available units, plus those that the books say are sold, plus those of its
    -- pending orders and of its paid orders that are not booked.
    SELECT 1 AS invariant, 'product ' || id AS subject,
           format('supply %s is not available %s + booked %s + paid and not booked %s + pending %s',
                  supply, available, sold, not_booked, pending) AS detail
    FROM stock
    WHERE supply <> available + sold + not_booked + pending

    -- 1: the books say that as many units are sold as the booked paid orders and the removed orders have.
    UNION ALL
    SELECT 1, 'product ' || id, format('its books say that %s are sold, %s of them in removed orders, and its booked orders have %s', sold, removed, booked)
    FROM stock
    WHERE $2::boolean AND sold <> removed + booked

    -- 2: no order is both paid and cancelled. The end is in the order's row, so that an order has at most one.
    UNION ALL
    SELECT 2, 'order ' || id,
           format('%s by %s, paid at %s, cancelled at %s', status, coalesce(ended_by, 'nobody'),
                  coalesce(paid_at::text, 'no time'), coalesce(cancelled_at::text, 'no time'))
    FROM ended
    WHERE (paid_at IS NOT NULL, cancelled_at IS NOT NULL) <> (status = 'paid', status = 'cancelled') OR ended_by IS NULL

    -- 3: no order is pending longer past its due time than the bound. The due time is the deadline or the hold's end.
    UNION ALL
    SELECT 3, 'order ' || id, format('pending %s past its due time', now() - due_at)
    FROM orders
    WHERE status = 'pending' AND due_at < now() - $1::bigint * interval '1 microsecond'

    -- 4: no order is paid at or after its due time, and none is cancelled before it.
    UNION ALL
    SELECT 4, 'order ' || id,
           format('due at %s, paid at %s, cancelled (%s) at %s', due_at, coalesce(paid_at::text, 'no time'),
                  coalesce(cancel_reason, 'no reason'), coalesce(cancelled_at::text, 'no time'))
    FROM ended
    WHERE paid_at >= due_at OR cancelled_at < due_at
)
SELECT invariant, subject, detail FROM violations ORDER BY invariant, subject LIMIT 1000
