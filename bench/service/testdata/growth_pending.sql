-- Inserts $1 pending orders with their tasks. Each has one item. The first is due in $2 seconds, and each other one $3 seconds
-- after the one before. $4 is the customer of all.
WITH wanted AS MATERIALIZED (
    SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7' || substr(random, 1, 3) || '8' || substr(random, 4, 15))::uuid AS id,
           ('00000000-0000-7000-8000-' || lpad((1 + n % 1000)::text, 12, '0'))::uuid AS product_id,
           now() + ($2::float8 + n * $3::float8) * interval '1 second' AS expires_at
    FROM generate_series(0, $1::bigint - 1) AS n, LATERAL (SELECT md5(random()::text || n) AS random) AS r
),
orders AS (
    INSERT INTO orders (id, customer_id, total_cents, currency, created_at, expires_at)
    SELECT id, $4::uuid, 100, 'EUR', now(), expires_at FROM wanted
),
items AS (
    INSERT INTO order_items (order_id, product_id, quantity, unit_price_cents, name) SELECT id, product_id, 1, 100, 'a product' FROM wanted
),
taken AS (
    UPDATE products p SET available = available - w.quantity
    FROM (SELECT product_id, count(*) AS quantity FROM wanted GROUP BY product_id) AS w WHERE p.id = w.product_id
)
INSERT INTO outbox (kind, task_id, due_at) SELECT 'order.cancel', id::text, expires_at FROM wanted
