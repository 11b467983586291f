-- +goose NO TRANSACTION
-- +goose Up
-- A checkout that was opened before the deadline stays payable until checkout_until. Until then its customer may also
-- ask to cancel. Each statement may be repeated: outside of a transaction, the validation does not block the service.
ALTER TABLE orders ADD COLUMN IF NOT EXISTS checkout_until timestamptz;
ALTER TABLE orders DROP CONSTRAINT IF EXISTS orders_cancel_requested_at,
    ADD CONSTRAINT orders_cancel_requested_at CHECK (cancel_requested_at < greatest(expires_at, checkout_until)) NOT VALID;
ALTER TABLE orders VALIDATE CONSTRAINT orders_cancel_requested_at;

-- +goose Down
ALTER TABLE orders DROP CONSTRAINT IF EXISTS orders_cancel_requested_at,
    ADD CONSTRAINT orders_cancel_requested_at CHECK (cancel_requested_at < expires_at);
ALTER TABLE orders DROP COLUMN IF EXISTS checkout_until;
