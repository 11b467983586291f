-- Returns the order, if another session has locked it, and those of its products that other sessions have locked. The columns
-- about the session are NULL if several sessions share the lock. It waits for no lock. The locks that it takes itself end with its transaction.
--
-- The row's xmax is the transaction that has locked or changed the row last. While this transaction runs, it has a lock of its
-- own number.
--
-- $1 id of the order
WITH free_order AS MATERIALIZED (
    SELECT id FROM orders WHERE id = $1 FOR NO KEY UPDATE SKIP LOCKED
), free_products AS MATERIALIZED (
    SELECT id FROM products WHERE id IN (SELECT product_id FROM order_items WHERE order_id = $1)
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
), locked AS (
    SELECT 'order' AS row, id, xmax FROM orders WHERE id = $1 AND id NOT IN (SELECT id FROM free_order)
    UNION ALL
    SELECT 'product', id, xmax FROM products
    WHERE id IN (SELECT product_id FROM order_items WHERE order_id = $1) AND id NOT IN (SELECT id FROM free_products)
)
SELECT locked.row, locked.id, a.pid, a.application_name AS application, a.state, a.xact_start AS since
FROM locked
LEFT JOIN pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = locked.xmax AND l.granted
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
ORDER BY locked.row, locked.id
