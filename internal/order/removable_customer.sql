-- Locks up to 500 booked orders of a customer, and returns their ids.
--
-- $1 customer · $2 id of the last order of the batch before, the nil UUID for the first batch
SELECT id FROM orders
WHERE customer_id = $1::uuid AND booked AND id > $2::uuid
ORDER BY id
LIMIT 500
FOR UPDATE SKIP LOCKED
