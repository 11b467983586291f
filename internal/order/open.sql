-- Returns the lines of the pending orders of some customers, the newest order first. An order that is due is not open
-- any more: its customer can neither pay nor cancel it. The condition is not part of the statement, because the index
-- of the due times must not be used: it has the pending orders of all customers. OFFSET 0 keeps PostgreSQL from joining
-- in another way than customer by customer.
--
-- $1 customer ids
SELECT c.id, o.id, o.due_at, i.product_id, i.quantity
FROM (SELECT DISTINCT unnest($1::uuid[]) AS id) AS c
CROSS JOIN LATERAL (
    SELECT id, due_at, created_at FROM orders WHERE customer_id = c.id AND status = 'pending' OFFSET 0
) AS o
JOIN order_items i ON i.order_id = o.id
ORDER BY o.created_at DESC, o.id DESC
