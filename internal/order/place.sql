-- Writes the orders that a batch places, and owes the tasks that cancel them. PostgreSQL checks the foreign keys at the
-- end of the statement.
--
-- One element for each order: $1 ids · $2 customers · $3 totals · $4 currencies · $5 idempotency keys, or '' for none
-- $6 fingerprints, or NULL without a key · $7 spans, or NULL if not traced
-- $8 time of the placement · $9 deadline · $10 kind of the task
-- One element for each line: $11 orders · $12 products · $13 quantities · $14 prices · $15 names
WITH o AS MATERIALIZED (
    SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::text[], $5::text[], $6::bytea[], $7::bytea[])
        AS o (id, customer_id, total_cents, currency, idempotency_key, fingerprint, span)
),
placed AS (
    INSERT INTO orders (id, customer_id, total_cents, currency, idempotency_key, fingerprint, span,
                        created_at, expires_at)
    SELECT id, customer_id, total_cents, currency, nullif(idempotency_key, ''), fingerprint, span, $8::timestamptz,
           $9::timestamptz
    FROM o
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at) SELECT $10::text, id::text, $9::timestamptz FROM o
)
INSERT INTO order_items (order_id, product_id, quantity, unit_price_cents, name)
SELECT * FROM unnest($11::uuid[], $12::uuid[], $13::bigint[], $14::bigint[], $15::text[])
