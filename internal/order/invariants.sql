-- Returns the rows that violate an invariant. A healthy database has none. The checks trust no CHECK of the tables,
-- because that of a copy may be wrong. All checks are one statement, so that they read one snapshot. OFFSET 0, and an
-- aggregate in a LATERAL subquery, make PostgreSQL look up the rows of each checked order by an index, because a join
-- may read whole tables, however few orders are checked.
--
-- $1 how long past its due time an order may be pending, in microseconds
-- $2 false: check the orders that are pending or not booked; true: check also the booked ones and the books
WITH checked AS MATERIALIZED ( -- so that each order is read once
    SELECT id, status, booked, paid_at, cancelled_at, ended_by, cancel_reason, expires_at, due_at
    FROM orders WHERE status = 'pending'
    UNION ALL
    SELECT id, status, booked, paid_at, cancelled_at, ended_by, cancel_reason, expires_at, due_at
    FROM orders WHERE NOT booked AND status <> 'pending'
    UNION ALL
    SELECT id, status, booked, paid_at, cancelled_at, ended_by, cancel_reason, expires_at, due_at
    FROM orders WHERE $2::boolean AND booked AND status <> 'pending'
),
reserved AS MATERIALIZED ( -- otherwise PostgreSQL sorts the items before it sums them up
    SELECT i.product_id,
           sum(i.quantity) FILTER (WHERE o.status = 'pending')                  AS pending,
           sum(i.quantity) FILTER (WHERE o.status = 'paid' AND NOT o.booked)    AS not_booked,
           sum(i.quantity) FILTER (WHERE o.status = 'paid' AND o.booked)        AS booked
    FROM checked o CROSS JOIN LATERAL (SELECT product_id, quantity FROM order_items WHERE order_id = o.id OFFSET 0) i
    WHERE o.status <> 'cancelled' -- of an IN, PostgreSQL expects few rows, and sorts, too
    GROUP BY i.product_id
),
stock AS (
    SELECT p.id, p.supply, p.available, coalesce(b.sold, 0) AS sold, coalesce(r.pending, 0) AS pending,
           coalesce(r.not_booked, 0) AS not_booked, coalesce(r.booked, 0) AS booked
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

    -- 1: no product has more available units than its supply, or a negative number of them.
    UNION ALL
    SELECT 1, 'product ' || id, format('%s of %s units are available', available, supply)
    FROM stock
    WHERE available NOT BETWEEN 0 AND supply

    -- 1: the books say that as many units are sold as the booked paid orders have.
    UNION ALL
    SELECT 1, 'product ' || id,
           format('its books say that %s are sold, and its booked orders have %s', sold, booked)
    FROM stock
    WHERE $2::boolean AND sold <> booked

    -- 2: no order is both paid and cancelled. The end is in the order's row, so that an order has at most one. An ended
    -- order has the time and the actor of its end, and the reason if it is cancelled. A pending order has none of them.
    UNION ALL
    SELECT 2, 'order ' || id,
           format('%s by %s, paid at %s, cancelled (%s) at %s, booked: %s',
                  status, coalesce(ended_by, 'nobody'), coalesce(paid_at::text, 'no time'),
                  coalesce(cancel_reason, 'no reason'), coalesce(cancelled_at::text, 'no time'), booked)
    FROM checked
    WHERE NOT coalesce(
        CASE status
            WHEN 'pending'   THEN paid_at IS NULL AND cancelled_at IS NULL AND NOT booked
            WHEN 'paid'      THEN paid_at IS NOT NULL AND cancelled_at IS NULL
            WHEN 'cancelled' THEN paid_at IS NULL AND cancelled_at IS NOT NULL
        END
        AND CASE status
            WHEN 'pending' THEN ended_by IS NULL
            ELSE ended_by IN ('customer', 'worker', 'reconciler', 'provider')
        END
        AND CASE status
            WHEN 'cancelled' THEN cancel_reason IN ('timeout', 'customer')
            ELSE cancel_reason IS NULL
        END, false)

    -- 3: no order is pending longer past its due time than the bound. The due time is the deadline or the hold's end.
    UNION ALL
    SELECT 3, 'order ' || id, format('pending %s past its due time', now() - due_at)
    FROM checked
    WHERE status = 'pending' AND due_at < now() - $1::bigint * interval '1 microsecond'

    -- 4: no order is paid at or after its due time. Its customer cancels it before its deadline, and the timeout not
    -- before its due time, nor before its deadline, because a hold ends later.
    UNION ALL
    SELECT 4, 'order ' || id,
           format('its deadline is %s, due at %s, paid at %s, cancelled (%s) at %s', expires_at, due_at,
                  coalesce(paid_at::text, 'no time'), coalesce(cancel_reason, 'no reason'),
                  coalesce(cancelled_at::text, 'no time'))
    FROM checked
    WHERE status <> 'pending' AND (paid_at >= due_at OR cancelled_at IS NOT NULL AND CASE cancel_reason
        WHEN 'customer' THEN cancelled_at >= expires_at
        ELSE cancelled_at < due_at OR cancelled_at < expires_at
    END)
)
SELECT invariant, subject, detail FROM violations ORDER BY invariant, subject LIMIT 1000
