-- Places an order: reserves its stock, and writes the order, its items, its first event, and the outbox row of the task
-- that cancels it at its deadline. It writes all of that or nothing, and returns one row. It writes nothing if a
-- product is unknown or out of stock, if the currencies differ, or if the customer has used the idempotency key before.
-- Then the row has no order, and locked has the products as they were while their locks were held.
--
-- $1 order id · $2 customer id · $3 idempotency key or NULL · $4 fingerprint or NULL
-- $5 time to pay in microseconds · $6 product ids · $7 their quantities · $8 kind of the outbox row
WITH wanted AS (
    SELECT product_id, quantity
    FROM unnest($6::uuid[], $7::bigint[]) AS w (product_id, quantity)
),
locked AS MATERIALIZED (
    -- In id order, as in every statement that locks products, so that no two statements deadlock. NO KEY, because the
    -- foreign keys of other orders' items hold KEY SHARE locks on these rows.
    SELECT p.id, p.name, p.price_cents, p.currency, p.supply, p.available, w.quantity
    FROM products p JOIN wanted w ON w.product_id = p.id
    ORDER BY p.id
    FOR NO KEY UPDATE OF p
),
accepted AS MATERIALIZED (
    -- The clock is read while the locks are held, so that the wait for them does not shorten the time to pay.
    SELECT clock_timestamp() AS at, min(currency) AS currency, sum(price_cents * quantity)::bigint AS total_cents
    FROM locked
    HAVING count(*) = (SELECT count(*) FROM wanted)
       AND count(DISTINCT currency) = 1
       AND bool_and(quantity <= available)
),
customer AS (
    -- A sign-up writes nothing: the customer's row is written with the first order. PostgreSQL checks the foreign key of
    -- the order at the end of the statement.
    INSERT INTO customers (id) SELECT $2::uuid FROM accepted
    ON CONFLICT DO NOTHING
),
placed AS (
    INSERT INTO orders (id, customer_id, total_cents, currency, idempotency_key, fingerprint, created_at, expires_at)
    SELECT $1::uuid, $2::uuid, total_cents, currency, $3::text, $4::bytea, at, at + $5::bigint * interval '1 microsecond'
    FROM accepted
    ON CONFLICT ON CONSTRAINT orders_idempotency_key DO NOTHING
    RETURNING id, customer_id, status, total_cents, currency, created_at, expires_at, due_at
),
reserved AS (
    -- l is the latest version of the row. PostgreSQL first computes the new row from p, the version of the statement's
    -- snapshot, and checks its constraints. Stock or supply may have grown since the snapshot, so both come from l.
    UPDATE products p SET available = l.available - l.quantity, supply = l.supply
    FROM locked l CROSS JOIN placed
    WHERE p.id = l.id
),
items AS (
    INSERT INTO order_items (order_id, product_id, quantity, unit_price_cents)
    SELECT placed.id, l.id, l.quantity, l.price_cents
    FROM locked l CROSS JOIN placed
),
event AS (
    INSERT INTO order_events (order_id, type, actor, at)
    SELECT id, 'placed', 'customer', created_at FROM placed
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at)
    SELECT $8::text, id::text, due_at FROM placed
)
SELECT placed.*, clock_timestamp() AS server_time,
    (
        SELECT json_agg(json_build_object('product_id', l.id, 'name', l.name,
                                          'quantity', l.quantity, 'unit_price_cents', l.price_cents) ORDER BY l.id)
        FROM locked l
    ) AS items,
    (
        SELECT json_agg(json_build_object('id', l.id, 'name', l.name,
                                          'currency', l.currency, 'available', l.available))
        FROM locked l
        WHERE placed.id IS NULL
    ) AS locked
FROM (VALUES (true)) AS always LEFT JOIN placed ON true
