-- Prepares the removal of orders of which nothing is owed: payments with captured money lose their order and stay,
-- because the provider may still move the money, and the other attempts are deleted.
--
-- $1 order ids
WITH kept AS (
    UPDATE payment_attempts SET removed_order = order_id, order_id = NULL, checkout_url = NULL
    WHERE order_id = ANY ($1::uuid[]) AND state = 'succeeded'
)
DELETE FROM payment_attempts WHERE order_id = ANY ($1::uuid[]) AND state = 'closed'
