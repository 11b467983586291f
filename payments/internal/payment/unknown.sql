-- Returns those of the ids of orders for which there is no attempt.
--
-- $1 order ids
SELECT batch.id FROM unnest($1::uuid[]) AS batch (id)
WHERE NOT EXISTS (SELECT FROM payment_attempts a WHERE a.order_id = batch.id)
