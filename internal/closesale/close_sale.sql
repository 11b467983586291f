-- Examines a page of the pending orders, sorted by due time, and brings the deadlines of those with a product forward, if
-- they are later than the notice from now. If an order is held, the time from the end of its checkout to the end of its hold
-- stays the same. The statement owes the tasks that cancel the moved orders, and the tasks of their holds. It returns one row: the
-- end of the page, for the next call, the new deadline, and the customers of the moved orders.
--
-- No index leads from a product to its pending orders. So the statement reads the partial index of the pending orders,
-- and looks for the product among the items of each order of the page.
--
-- $1 product id · $2 notice in microseconds · $3 kind of the tasks that cancel · $4 kind of the task of a hold; '': no outbox rows
-- $5 due time and $6 id of the last order of the previous page (NULL and any id: the first page)
-- $7 start of the first page (NULL: this is the first page) · $8 maximum number of orders in the page
WITH page AS MATERIALIZED (
    -- An order that is placed later is not moved. Otherwise new orders could keep the caller busy for ever.
    SELECT id, due_at FROM orders
    WHERE status = 'pending'
      AND (due_at, id) > (coalesce($5::timestamptz, now() + $2::bigint * interval '1 microsecond'), $6::uuid)
      AND created_at <= coalesce($7::timestamptz, now())
    ORDER BY due_at, id
    LIMIT $8
),
locked AS MATERIALIZED (
    -- In id order, as in every statement that waits for locks of several orders, so that no two statements deadlock. An
    -- order that ended or was brought forward during the wait is left out.
    SELECT o.id, o.customer_id, o.expires_at, o.checkout_until, o.hold_until
    FROM orders o
    WHERE o.id IN (SELECT i.order_id FROM order_items i JOIN page ON page.id = i.order_id WHERE i.product_id = $1::uuid)
      AND o.status = 'pending' AND o.expires_at > now() + $2::bigint * interval '1 microsecond'
    ORDER BY o.id
    FOR UPDATE OF o
),
decided AS MATERIALIZED (
    -- The clock is read after all locks are taken, so that the wait for them does not shorten the notice.
    SELECT clock_timestamp() AS at, clock_timestamp() + $2::bigint * interval '1 microsecond' AS deadline, count(*) AS orders
    FROM locked
),
moved AS (
    UPDATE orders o SET expires_at = d.deadline, checkout_until = l.checkout_until,
        hold_until = greatest(d.deadline, l.checkout_until) + (l.hold_until - greatest(l.expires_at, l.checkout_until))
    FROM locked l CROSS JOIN decided d
    WHERE o.id = l.id AND l.expires_at > d.deadline
    RETURNING o.id, o.customer_id, o.expires_at, o.checkout_until, o.hold_until, o.due_at, d.at
),
event AS (
    INSERT INTO order_events (order_id, type, actor, at)
    SELECT id, 'brought_forward', 'operator', at FROM moved
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at)
    SELECT kind, id::text, due_at FROM (
        SELECT $3::text AS kind, id, due_at FROM moved
        UNION ALL
        SELECT $4::text, id, greatest(expires_at, checkout_until) FROM moved WHERE hold_until IS NOT NULL
    ) task
    WHERE kind <> ''
    ORDER BY kind, id
    ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
)
SELECT (SELECT count(*) FROM page) AS examined,
       (SELECT due_at FROM page ORDER BY due_at DESC, id DESC LIMIT 1) AS last_due_at,
       (SELECT id FROM page ORDER BY due_at DESC, id DESC LIMIT 1) AS last_id,
       d.deadline, coalesce($7::timestamptz, now()) AS began,
       (SELECT json_agg(json_build_object('id', m.id, 'customer_id', m.customer_id)) FROM moved m) AS moved
FROM decided d
