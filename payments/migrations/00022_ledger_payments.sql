-- +goose NO TRANSACTION
-- +goose Up
-- The sums of the payments that the service has deleted, by currency. The reports of the provider's books include them.
CREATE TABLE IF NOT EXISTS deleted_payments (
    currency       text   PRIMARY KEY,
    payments       bigint NOT NULL CHECK (payments > 0),
    captured_cents bigint NOT NULL,
    refunded_cents bigint NOT NULL CHECK (refunded_cents BETWEEN 0 AND captured_cents)
);
-- The payments of removed orders by age. An interrupted CREATE INDEX CONCURRENTLY leaves an index that no statement uses.
DROP INDEX IF EXISTS payment_attempts_ledger;
SET lock_timeout = 0; -- see package migrations
CREATE INDEX CONCURRENTLY payment_attempts_ledger ON payment_attempts (ended_at, id) WHERE order_id IS NULL;
SET lock_timeout = '2s';

-- +goose Down
-- All later reports lack what was captured of deleted payments.
DROP INDEX IF EXISTS payment_attempts_ledger;
DROP TABLE deleted_payments;
