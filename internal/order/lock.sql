-- Locks the products of a batch of placements, and returns them. It waits for the locks, and returns each product as it
-- is afterwards.
--
-- In id order, as in every statement that locks products, so that no two transactions deadlock. NO KEY, because the
-- foreign keys of other orders' items take KEY SHARE locks on these rows.
--
-- $1 product ids
SELECT id, name, price_cents, currency, available FROM products
WHERE id = ANY ($1::uuid[])
ORDER BY id FOR NO KEY UPDATE
