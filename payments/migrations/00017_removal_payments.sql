-- +goose NO TRANSACTION
-- +goose Up
-- A payment outlives its order, because the provider may still move its money. Each statement may be repeated: outside of a
-- transaction, the validation does not block the service.
ALTER TABLE payment_attempts ADD COLUMN IF NOT EXISTS removed_order uuid; -- the id of the order that was removed
ALTER TABLE payment_attempts ALTER COLUMN order_id DROP NOT NULL;         -- NULL: the order was removed
ALTER TABLE payment_attempts DROP CONSTRAINT IF EXISTS payment_attempts_removed,
    ADD CONSTRAINT payment_attempts_removed CHECK (
        CASE WHEN order_id IS NULL THEN removed_order IS NOT NULL AND state = 'succeeded' AND next_check IS NULL
             ELSE removed_order IS NULL END) NOT VALID;
ALTER TABLE payment_attempts VALIDATE CONSTRAINT payment_attempts_removed;
-- The deletion of an attempt looks for movements that refer to it. An interrupted CREATE INDEX CONCURRENTLY leaves an index that
-- no statement uses.
DROP INDEX IF EXISTS provider_movements_attempt;
SET lock_timeout = 0; -- see package migrations
CREATE INDEX CONCURRENTLY provider_movements_attempt ON provider_movements (attempt_id) WHERE attempt_id IS NOT NULL;
SET lock_timeout = '2s';

-- +goose Down
-- Payments of removed orders, which the older schema cannot hold, must be deleted by hand first.
DROP INDEX IF EXISTS provider_movements_attempt;
ALTER TABLE payment_attempts DROP CONSTRAINT IF EXISTS payment_attempts_removed;
ALTER TABLE payment_attempts ALTER COLUMN order_id SET NOT NULL;
ALTER TABLE payment_attempts DROP COLUMN IF EXISTS removed_order;
