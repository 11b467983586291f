-- Returns those of the products that another session has locked right now. It waits for no lock.
--
-- $1 product ids
WITH free AS MATERIALIZED (
    SELECT id FROM products WHERE id = ANY ($1::uuid[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
SELECT id FROM products WHERE id = ANY ($1::uuid[]) AND id NOT IN (SELECT id FROM free)
