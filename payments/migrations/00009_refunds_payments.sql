-- +goose Up
ALTER TABLE payment_attempts
    ADD COLUMN disputed_cents bigint NOT NULL DEFAULT 0 CHECK (disputed_cents >= 0), -- withdrawn by disputes, less what came back
    DROP CONSTRAINT payment_attempts_order_id_fkey,
    ADD CONSTRAINT payment_attempts_order_id_fkey FOREIGN KEY (order_id) REFERENCES orders ON DELETE RESTRICT;
ALTER TABLE refunds
    ADD COLUMN note text, ADD COLUMN actor text, ADD COLUMN request_key text,
    DROP CONSTRAINT refunds_attempt_id_key,
    DROP CONSTRAINT refunds_attempt_id_fkey,
    ADD CONSTRAINT refunds_attempt_id_fkey FOREIGN KEY (attempt_id) REFERENCES payment_attempts ON DELETE RESTRICT,
    DROP CONSTRAINT refunds_reason_check,
    ADD CONSTRAINT refunds_reason_check CHECK (reason IN ('late', 'duplicate', 'mismatch', 'requested')),
    ADD CONSTRAINT refunds_requested CHECK (reason <> 'requested' OR (request_key IS NOT NULL AND note IS NOT NULL AND actor IS NOT NULL)),
    ADD CONSTRAINT refunds_request_key UNIQUE (attempt_id, request_key),
    DROP CONSTRAINT refunds_state;
-- What the runbook called "by hand" was stored as confirmed.
UPDATE refunds SET state = 'settled_outside', next_check = NULL, provider_id = NULL, actor = 'an operator',
    note = 'recorded as returned outside the provider by an older release' WHERE provider_id LIKE 'by hand: %';
ALTER TABLE refunds ADD CONSTRAINT refunds_state CHECK (
    CASE state
        WHEN 'owed'            THEN ended_at IS NULL     AND next_check IS NOT NULL
        WHEN 'sent'            THEN ended_at IS NULL     AND next_check IS NOT NULL AND provider_id IS NOT NULL
        WHEN 'confirmed'       THEN ended_at IS NOT NULL AND provider_id IS NOT NULL
        WHEN 'failed'          THEN ended_at IS NOT NULL
        WHEN 'settled_outside' THEN ended_at IS NOT NULL AND next_check IS NULL AND note IS NOT NULL AND actor IS NOT NULL
        ELSE false
    END);
CREATE UNIQUE INDEX refunds_automatic ON refunds (attempt_id) WHERE reason IN ('late', 'duplicate', 'mismatch');
CREATE INDEX refunds_of_attempt ON refunds (attempt_id);
-- +goose Down
-- Rows that the older schema cannot hold must be removed by hand first.
DROP INDEX refunds_automatic, refunds_of_attempt;
ALTER TABLE refunds DROP CONSTRAINT refunds_request_key, DROP CONSTRAINT refunds_requested, DROP CONSTRAINT refunds_state,
    DROP CONSTRAINT refunds_reason_check, DROP CONSTRAINT refunds_attempt_id_fkey,
    DROP COLUMN note, DROP COLUMN actor, DROP COLUMN request_key,
    ADD CONSTRAINT refunds_attempt_id_key UNIQUE (attempt_id),
    ADD CONSTRAINT refunds_attempt_id_fkey FOREIGN KEY (attempt_id) REFERENCES payment_attempts ON DELETE CASCADE,
    ADD CONSTRAINT refunds_reason_check CHECK (reason IN ('late', 'duplicate', 'mismatch')),
    ADD CONSTRAINT refunds_state CHECK (
        CASE state
            WHEN 'owed'      THEN ended_at IS NULL     AND next_check IS NOT NULL
            WHEN 'sent'      THEN ended_at IS NULL     AND next_check IS NOT NULL AND provider_id IS NOT NULL
            WHEN 'confirmed' THEN ended_at IS NOT NULL AND provider_id IS NOT NULL
            WHEN 'failed'    THEN ended_at IS NOT NULL
            ELSE false
        END);
ALTER TABLE payment_attempts DROP COLUMN disputed_cents, DROP CONSTRAINT payment_attempts_order_id_fkey,
    ADD CONSTRAINT payment_attempts_order_id_fkey FOREIGN KEY (order_id) REFERENCES orders ON DELETE CASCADE;
