-- Locks the payment of an order until the transaction ends, so that no other request refunds it at the same time.
-- refund_request.sql is a statement of its own, so that it sees the refunds that were stored while this one waited.
-- Returns whether there is such an order, and the payment if the order was paid at the provider.
--
-- $1 order id
WITH locked AS (
    SELECT id FROM payment_attempts WHERE order_id = $1::uuid AND applied FOR UPDATE
)
SELECT EXISTS (SELECT FROM orders WHERE id = $1::uuid) AS found, (SELECT id FROM locked) AS payment_id
