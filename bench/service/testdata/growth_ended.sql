-- Inserts the ended and booked orders $1 to $2 of $3, which are spread over a year that ended an hour ago. Each has one item. Of
-- ten orders four are paid, five were cancelled by the timeout, and one by its customer. The customer $4 has a hundredth
-- of the orders, the customer $5 has fifty, and each other customer about fifty.
WITH ended AS MATERIALIZED (
    SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid AS id,
           (CASE WHEN n % 100 = 0 THEN $4::text WHEN n % ($3::bigint / 50) = 1 THEN $5::text
                 ELSE '00000000-0000-7000-9000-' || lpad((1 + (hashint8(n)::bigint & 2147483647) % ($3::bigint / 50 + 1))::text, 12, '0') END)::uuid AS customer_id,
           ('00000000-0000-7000-8000-' || lpad((1 + n % 1000)::text, 12, '0'))::uuid AS product_id,
           at, at + interval '30 min' AS expires_at,
           CASE WHEN n % 10 < 4 THEN 'paid' ELSE 'cancelled' END AS status,
           CASE WHEN n % 10 < 4 THEN NULL WHEN n % 10 < 9 THEN 'timeout' ELSE 'customer' END AS cancel_reason,
           CASE WHEN n % 10 BETWEEN 4 AND 8 THEN at + interval '30 min 2 ms' ELSE at + interval '1 min' END AS ended_at
    FROM generate_series($1::bigint, $2::bigint) AS n,
         LATERAL (SELECT now() - interval '1 hour' - interval '1 year' * (1 - n / $3::bigint::float8) AS at) AS clock
),
orders AS (
    INSERT INTO orders (id, customer_id, status, cancel_reason, total_cents, currency, created_at, expires_at, paid_at, cancelled_at, ended_by, booked)
    SELECT id, customer_id, status, cancel_reason, 100, 'EUR', at, expires_at, CASE WHEN status = 'paid' THEN ended_at END,
           CASE WHEN status = 'cancelled' THEN ended_at END,
           CASE cancel_reason WHEN 'timeout' THEN 'worker' ELSE 'customer' END, true
    FROM ended
),
items AS (
    INSERT INTO order_items (order_id, product_id, quantity, unit_price_cents, name) SELECT id, product_id, 1, 100, 'a product' FROM ended
),
sold AS (
    SELECT product_id, count(*) AS quantity FROM ended WHERE status = 'paid' GROUP BY product_id
),
taken AS (
    UPDATE products p SET available = available - s.quantity FROM sold s WHERE p.id = s.product_id
)
INSERT INTO stock_books AS b (product_id, sold) SELECT product_id, quantity FROM sold
ON CONFLICT (product_id) DO UPDATE SET sold = b.sold + excluded.sold
