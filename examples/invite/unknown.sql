-- Returns, for the reconciler, those of the ids for which there is no invitation of any status.
--
-- $1 ids
SELECT batch.id FROM unnest($1::uuid[]) AS batch (id)
WHERE NOT EXISTS (SELECT FROM invitations i WHERE i.id = batch.id)
