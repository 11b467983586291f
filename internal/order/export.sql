-- Returns the rows of orders, their items and their events, as a JSON array for each order and table.
--
-- $1 ids
SELECT id AS order_id, 'orders' AS "table", json_build_array(to_json(o))::text AS rows
FROM orders o WHERE id = ANY ($1::uuid[])
UNION ALL
SELECT order_id, 'order_items', json_agg(to_json(i) ORDER BY product_id)::text
FROM order_items i WHERE order_id = ANY ($1::uuid[]) GROUP BY order_id
UNION ALL
SELECT order_id, 'order_events', json_agg(to_json(e) ORDER BY id)::text
FROM order_events e WHERE order_id = ANY ($1::uuid[]) GROUP BY order_id
