-- Returns each order of a batch with the first of its products that another session has locked, or with NULL if none of
-- its products is locked. It waits for no lock.
--
-- $1 order ids
WITH free AS MATERIALIZED (
    SELECT id FROM products
    WHERE id IN (SELECT product_id FROM order_items WHERE order_id = ANY ($1::uuid[]))
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT batch.id, (
    SELECT i.product_id FROM order_items i
    WHERE i.order_id = batch.id AND i.product_id NOT IN (SELECT id FROM free)
    ORDER BY i.product_id
    LIMIT 1
) AS locked
FROM unnest($1::uuid[]) AS batch (id)
