-- +goose Up
ALTER TABLE unclaimed_payments ADD COLUMN try int NOT NULL DEFAULT 1; -- part of the key that the provider deduplicates by
ALTER TABLE payment_incidents ADD COLUMN seen_until timestamptz; -- the newest lost session that it is about, by the provider's clock
UPDATE payment_incidents SET seen_until = coalesce(closed_at, opened_at) WHERE kind = 'lost_sessions';
-- +goose Down
ALTER TABLE payment_incidents DROP COLUMN seen_until;
ALTER TABLE unclaimed_payments DROP COLUMN try;
