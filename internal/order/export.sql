-- Returns the rows of orders, their items and their audit trails, as a JSON array for each order and table.
--
-- $1 ids
SELECT id AS order_id, 'orders' AS "table", json_build_array(to_json(o))::text AS rows
FROM orders o WHERE id = ANY ($1::uuid[])
UNION ALL
SELECT order_id, 'order_items', json_agg(to_json(i) ORDER BY product_id)::text
FROM order_items i WHERE order_id = ANY ($1::uuid[]) GROUP BY order_id
UNION ALL
SELECT order_id, 'order_trail', json_agg(json_build_object('type', type, 'actor', actor, 'at', at) ORDER BY number)::text
FROM order_trail t WHERE order_id = ANY ($1::uuid[]) GROUP BY order_id
