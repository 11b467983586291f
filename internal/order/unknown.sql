-- Returns those of the ids for which there is no order of any status.
--
-- $1 ids
SELECT batch.id FROM unnest($1::uuid[]) AS batch (id)
WHERE NOT EXISTS (SELECT FROM orders o WHERE o.id = batch.id)
