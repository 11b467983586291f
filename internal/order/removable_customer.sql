-- Returns the ids of up to 500 booked orders of a customer. removeBatch locks them.
--
-- $1 id of the last order of the batch before, the nil UUID for the first batch · $2 customer
SELECT id FROM orders
WHERE customer_id = $2::uuid AND booked AND id > $1::uuid
ORDER BY id
LIMIT 500
