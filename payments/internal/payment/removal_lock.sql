-- Locks the payments of orders that are about to be removed, until the transaction ends. removal_owed.sql is a
-- statement of its own, so that it sees what was stored while this one waited: a refund is stored with the lock of its
-- payment.
--
-- $1 order ids
SELECT id FROM payment_attempts WHERE order_id = ANY ($1::uuid[]) ORDER BY id FOR UPDATE
