-- +goose Up
ALTER TABLE payment_attempts
    ADD COLUMN session_expires_at timestamptz,           -- by the provider's clock; NULL: an attempt of an older binary
    ADD COLUMN was_open boolean NOT NULL DEFAULT false,   -- its customer could learn the URL of the checkout
    ADD COLUMN hinted_at timestamptz,                    -- the customer's last return from the checkout, to limit the rate
    DROP CONSTRAINT payment_attempts_number_check,
    ADD CONSTRAINT payment_attempts_number_check CHECK (number BETWEEN 1 AND 20);
UPDATE payment_attempts SET was_open = true WHERE session_id IS NOT NULL;
-- +goose Down
ALTER TABLE payment_attempts DROP COLUMN session_expires_at, DROP COLUMN was_open, DROP COLUMN hinted_at,
    DROP CONSTRAINT payment_attempts_number_check,
    ADD CONSTRAINT payment_attempts_number_check CHECK (number BETWEEN 1 AND 5);
