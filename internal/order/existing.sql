-- Returns the orders that exist already for the placements of a batch: with the idempotency key of the placement, or
-- with its id, because a transaction whose connection was lost has placed it.
--
-- $1 ids · $2 customer ids · $3 idempotency keys, or NULL
SELECT w.n, o.id, o.fingerprint
FROM unnest($1::uuid[], $2::uuid[], $3::text[]) WITH ORDINALITY AS w (id, customer_id, idempotency_key, n)
CROSS JOIN LATERAL (
    SELECT id, fingerprint FROM orders WHERE id = w.id
    UNION ALL
    SELECT id, fingerprint FROM orders
    WHERE customer_id = w.customer_id AND idempotency_key = w.idempotency_key AND id <> w.id
) AS o
