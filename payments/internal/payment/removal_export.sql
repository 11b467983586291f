-- Returns what was paid for orders and given back, as a JSON array for each order and table.
--
-- $1 order ids
SELECT order_id, 'payment_attempts' AS "table", json_agg(to_json(a) ORDER BY number)::text AS rows
FROM payment_attempts a WHERE order_id = ANY ($1::uuid[]) GROUP BY order_id
UNION ALL
SELECT a.order_id, 'refunds', json_agg(to_json(r) ORDER BY r.created_at, r.id)::text
FROM refunds r JOIN payment_attempts a ON a.id = r.attempt_id
WHERE a.order_id = ANY ($1::uuid[]) GROUP BY a.order_id
