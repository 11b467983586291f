-- Books up to 500 ended orders that are not booked: adds the items of the paid ones to the books, which count what was
-- sold of each product, and marks all orders. Both are one transaction, so an order is in the books exactly if it is
-- marked. A cancelled order returned its stock when it ended, so it adds nothing. The result is the number of booked
-- orders, and the id of the last one (NULL if there is none).
--
-- A restore adds the primary key after all rows, and ON CONFLICT needs it, so a half-restored database books nothing.
--
-- $1 id of the last order of the batch before, the nil UUID for the first batch
WITH batch AS MATERIALIZED (
    -- SKIP LOCKED skips an order that another booker or a customer's request has locked. LIMIT is a constant, because
    -- with a parameter the planner expects a tenth of all orders that are not booked, and reads whole tables for them.
    SELECT id, status FROM orders
    WHERE NOT booked AND status <> 'pending' AND id > $1::uuid
    ORDER BY id
    LIMIT 500
    FOR UPDATE SKIP LOCKED
),
booked AS (
    UPDATE orders o SET booked = true FROM batch b WHERE o.id = b.id
),
sold AS (
    SELECT i.product_id, sum(i.quantity)::bigint AS quantity
    FROM batch b JOIN order_items i ON i.order_id = b.id
    WHERE b.status = 'paid'
    GROUP BY i.product_id
),
added AS (
    -- In id order, so that two bookers do not deadlock.
    INSERT INTO stock_books AS s (product_id, sold)
    SELECT product_id, quantity FROM sold ORDER BY product_id
    ON CONFLICT (product_id) DO UPDATE SET sold = s.sold + excluded.sold
)
SELECT count(*) AS orders, (SELECT id FROM batch ORDER BY id DESC LIMIT 1) AS last FROM batch
