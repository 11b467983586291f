-- +goose Up
ALTER TABLE unclaimed_payments ADD COLUMN try int NOT NULL DEFAULT 1; -- part of the key that the provider deduplicates by
ALTER TABLE payment_incidents ADD COLUMN seen_until timestamptz; -- the newest lost session that it is about, by the provider's clock
UPDATE payment_incidents SET seen_until = coalesce(closed_at, opened_at) WHERE kind = 'lost_sessions';
ALTER TABLE provider_movements ADD COLUMN net_cents bigint NOT NULL -- what it adds to the money of its payment
    GENERATED ALWAYS AS (CASE WHEN kind IN ('captured', 'refund_failed', 'dispute_reversed') THEN amount_cents ELSE -amount_cents END) STORED;
-- +goose Down
ALTER TABLE provider_movements DROP COLUMN net_cents;
ALTER TABLE payment_incidents DROP COLUMN seen_until;
ALTER TABLE unclaimed_payments DROP COLUMN try;
