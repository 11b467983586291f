-- Places an order: reserves its stock and writes the order, its items, its first event and the outbox row
-- that has it cancelled at its deadline, all or nothing. If nothing was written, the row that comes back has no
-- order but the products as they were locked: one is unknown or short, the currencies differ, or the customer has
-- used the idempotency key before.
--
-- $1 order id · $2 customer id · $3 idempotency key or NULL · $4 fingerprint or NULL
-- $5 time to pay in microseconds · $6 product ids · $7 their quantities · $8 kind of the outbox row
WITH wanted AS (
    SELECT product_id, quantity
    FROM unnest($6::uuid[], $7::bigint[]) AS w (product_id, quantity)
),
locked AS MATERIALIZED (
    -- In id order, as wherever products are locked: no deadlocks. NO KEY, because the foreign keys of
    -- other orders' items hold KEY SHARE locks on these rows.
    SELECT p.id, p.name, p.price_cents, p.currency, p.supply, p.available, w.quantity
    FROM products p JOIN wanted w ON w.product_id = p.id
    ORDER BY p.id
    FOR NO KEY UPDATE OF p
),
accepted AS MATERIALIZED (
    -- The clock is read with the locks held: the wait for them is not the customer's.
    SELECT clock_timestamp() AS at, min(currency) AS currency, sum(price_cents * quantity)::bigint AS total_cents
    FROM locked
    HAVING count(*) = (SELECT count(*) FROM wanted)
       AND count(DISTINCT currency) = 1
       AND bool_and(quantity <= available)
),
customer AS (
    -- A customer is a row from their first order on: signing up writes nothing. The foreign key of the order is checked
    -- at the statement's end.
    INSERT INTO customers (id) SELECT $2::uuid FROM accepted
    ON CONFLICT DO NOTHING
),
placed AS (
    INSERT INTO orders (id, customer_id, total_cents, currency, idempotency_key, fingerprint, created_at, expires_at)
    SELECT $1::uuid, $2::uuid, total_cents, currency, $3::text, $4::bytea, at, at + $5::bigint * interval '1 microsecond'
    FROM accepted
    ON CONFLICT ON CONSTRAINT orders_idempotency_key DO NOTHING
    RETURNING id, customer_id, status, total_cents, currency, created_at, expires_at
),
reserved AS (
    -- l is the row's latest version. The constraints are checked on what becomes of p, which may be the snapshot's
    -- for as long as that takes: with stock, or a supply, that has grown since. So both come from l.
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
    SELECT $8::text, id::text, expires_at FROM placed
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
