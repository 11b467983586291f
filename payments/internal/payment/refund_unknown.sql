-- Returns those of the ids for which there is no refund.
--
-- $1 ids
SELECT batch.id FROM unnest($1::uuid[]) AS batch (id)
WHERE NOT EXISTS (SELECT FROM refunds r WHERE r.id = batch.id)
