-- Returns the orders of a batch whose products no other session has locked. It waits for no lock.
--
-- $1 order ids
WITH free AS MATERIALIZED (
    SELECT id FROM products
    WHERE id IN (SELECT product_id FROM order_items WHERE order_id = ANY ($1::uuid[]))
    ORDER BY id
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT batch.id FROM unnest($1::uuid[]) AS batch (id)
WHERE NOT EXISTS (
    SELECT FROM order_items i WHERE i.order_id = batch.id AND i.product_id NOT IN (SELECT id FROM free)
)
