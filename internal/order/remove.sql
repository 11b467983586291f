-- Removes orders that this transaction has locked. Their items and events go with them. What they sold stays in the books.
-- Returns the number of removed orders.
--
-- $1 ids
WITH sold AS (
    SELECT i.product_id, sum(i.quantity)::bigint AS quantity
    FROM orders o JOIN order_items i ON i.order_id = o.id
    WHERE o.id = ANY ($1::uuid[]) AND o.status = 'paid'
    GROUP BY i.product_id
),
counted AS (
    -- The row exists, because the order was booked. An INSERT locks the rows in id order, as the booker does, so that the two
    -- do not deadlock.
    INSERT INTO stock_books AS s (product_id, sold, removed)
    SELECT product_id, quantity, quantity FROM sold ORDER BY product_id
    ON CONFLICT (product_id) DO UPDATE SET removed = s.removed + excluded.removed
),
removed AS (
    DELETE FROM orders WHERE id = ANY ($1::uuid[]) AND booked RETURNING id
)
SELECT count(*) AS orders FROM removed
