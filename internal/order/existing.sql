-- Returns the orders that exist already with the idempotency keys of the placements of a batch. OFFSET 0 makes PostgreSQL
-- look up each key by the index, because a join may read the whole table.
--
-- $1 customer ids · $2 idempotency keys
SELECT o.customer_id, o.idempotency_key, o.id, o.fingerprint
FROM unnest($1::uuid[], $2::text[]) AS w (customer_id, idempotency_key)
CROSS JOIN LATERAL (
    SELECT customer_id, idempotency_key, id, fingerprint FROM orders
    WHERE customer_id = w.customer_id AND idempotency_key = w.idempotency_key
    OFFSET 0
) AS o
