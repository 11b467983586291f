-- +goose Up
ALTER TABLE unclaimed_payments ADD COLUMN try int NOT NULL DEFAULT 1; -- part of the key that the provider deduplicates by
-- +goose Down
ALTER TABLE unclaimed_payments DROP COLUMN try;
