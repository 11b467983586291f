-- +goose Up
-- An older binary stored the answer `200 {}` as an open session.
UPDATE payment_attempts SET state = 'closed', ended_at = coalesce(ended_at, clock_timestamp()), next_check = NULL, session_id = NULL,
    checkout_url = NULL WHERE session_id = '';
ALTER TABLE payment_attempts
    ADD COLUMN provider text NOT NULL DEFAULT 'stripe',
    ADD COLUMN asked_at timestamptz, -- somebody waits for the check since then: a customer who has paid, or returned
    ADD COLUMN told_at  timestamptz, -- the first webhook about its end
    ADD CONSTRAINT payment_attempts_session CHECK (session_id <> '' AND checkout_url <> '' AND payment_intent <> '');
ALTER TABLE refunds ADD COLUMN provider text NOT NULL DEFAULT 'stripe';
ALTER TABLE provider_events ADD COLUMN provider text NOT NULL DEFAULT 'stripe';
CREATE INDEX payment_attempts_asked ON payment_attempts (next_check) WHERE asked_at IS NOT NULL AND next_check IS NOT NULL;
UPDATE payment_attempts SET told_at = ended_at WHERE state = 'succeeded';
-- Successes that no webhook told: while there are some, open attempts are polled often.
CREATE INDEX payment_attempts_untold ON payment_attempts (ended_at) WHERE state = 'succeeded' AND told_at IS NULL;
-- +goose Down
DELETE FROM outbox WHERE kind = 'payment.confirm';
DELETE FROM reconcile_reports WHERE kind = 'payment.confirm';
ALTER TABLE refunds DROP COLUMN provider;
ALTER TABLE provider_events DROP COLUMN provider;
ALTER TABLE payment_attempts DROP COLUMN provider, DROP COLUMN asked_at, DROP COLUMN told_at, DROP CONSTRAINT payment_attempts_session;
