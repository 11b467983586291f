-- Removes orders that this transaction has locked, with their items and events, and returns the number of removed
-- orders. The books still count what these orders sold.
--
-- $1 ids
WITH sold AS (
    SELECT i.product_id, sum(i.quantity)::bigint AS quantity
    FROM orders o JOIN order_items i ON i.order_id = o.id
    WHERE o.id = ANY ($1::uuid[]) AND o.status = 'paid'
    GROUP BY i.product_id
),
counted AS (
    -- The row exists, because the order was booked. It is an INSERT all the same, because an INSERT locks the rows in
    -- id order, as the booker does, so that the two do not deadlock.
    INSERT INTO stock_books AS s (product_id, sold, removed)
    SELECT product_id, quantity, quantity FROM sold ORDER BY product_id
    ON CONFLICT (product_id) DO UPDATE SET removed = s.removed + excluded.removed
),
removed AS (
    DELETE FROM orders WHERE id = ANY ($1::uuid[]) AND booked RETURNING id
)
SELECT count(*) AS orders FROM removed
