-- Locks what a batch of placements needs, first the products and then the customers, and returns the products. The next
-- statement of the transaction decides the placements. It cannot be part of this statement, because a statement that
-- waits for a lock still sees the orders as they were before its wait.
--
-- The subqueries that count rows, and the join at the end, make PostgreSQL evaluate the parts in this order.
--
-- $1 product ids · $2 customer ids · $3 lock_timeout for the rest of the transaction (NULL: that of the session)
WITH setting AS MATERIALIZED (
    SELECT set_config('lock_timeout', $3::text, true)
),
locked AS MATERIALIZED (
    -- In id order, as in every statement that locks products, so that no two statements deadlock. NO KEY, because the
    -- foreign keys of other orders' items take KEY SHARE locks on these rows.
    SELECT id, name, price_cents, currency, available
    FROM products
    WHERE id = ANY ($1::uuid[]) AND (SELECT count(*) FROM setting) = 1
    ORDER BY id
    FOR NO KEY UPDATE
),
customers AS MATERIALIZED (
    -- Advisory locks, because a customer without orders has no row to lock. A session that has these locks waits for no
    -- product, so others wait for them only briefly. They are taken in one order too.
    SELECT count(pg_advisory_xact_lock(key))
    FROM (SELECT DISTINCT hashtextextended(id::text, 0) AS key FROM unnest($2::uuid[]) AS id ORDER BY key) AS keys
    WHERE (SELECT count(*) FROM locked) > 0
)
SELECT locked.* FROM locked CROSS JOIN customers
