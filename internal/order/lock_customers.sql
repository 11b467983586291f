-- Locks the customers of a batch of placements, whose products are locked, so that no two placements of a customer are
-- decided at the same time. A session that has these locks waits for no product, so others wait for them only briefly.
--
-- Advisory locks, because a customer without orders has no row to lock. They are taken in one order, too.
--
-- $1 customer ids
SELECT count(pg_advisory_xact_lock(key))
FROM (SELECT DISTINCT hashtextextended(id::text, 0) AS key FROM unnest($1::uuid[]) AS id ORDER BY key) AS keys
