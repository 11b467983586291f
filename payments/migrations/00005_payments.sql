-- +goose Up
-- Payments of orders at a payment provider. The unique indexes allow an order at most one live attempt and at most one
-- success that paid it. next_check is when the attempt or refund is looked at next; NULL: there is nothing to do.

CREATE TABLE payment_attempts (
    id             uuid PRIMARY KEY,
    order_id       uuid        NOT NULL REFERENCES orders ON DELETE CASCADE,
    number         smallint    NOT NULL CHECK (number BETWEEN 1 AND 5), -- an order has at most five attempts
    amount_cents   bigint      NOT NULL CHECK (amount_cents > 0),
    currency       text        NOT NULL CHECK (currency ~ '^[a-z]{3}$'), -- lower case, as the provider writes it
    state          text        NOT NULL DEFAULT 'creating',
    applied        boolean     NOT NULL DEFAULT false, -- the success paid the order
    session_id     text        UNIQUE,
    checkout_url   text,
    payment_intent text        UNIQUE,
    captured_cents bigint      NOT NULL DEFAULT 0 CHECK (captured_cents >= 0),
    opened_at      timestamptz NOT NULL,
    closing        boolean     NOT NULL DEFAULT false, -- the last check found that the attempt is closing
    next_check     timestamptz,
    ended_at       timestamptz,

    CONSTRAINT payment_attempts_number UNIQUE (order_id, number),
    CONSTRAINT payment_attempts_state CHECK (
        CASE state
            WHEN 'creating'  THEN ended_at IS NULL     AND next_check IS NOT NULL
            WHEN 'open'      THEN ended_at IS NULL     AND next_check IS NOT NULL AND session_id IS NOT NULL AND checkout_url IS NOT NULL
            WHEN 'closed'    THEN ended_at IS NOT NULL
            WHEN 'succeeded' THEN ended_at IS NOT NULL AND session_id IS NOT NULL AND payment_intent IS NOT NULL AND captured_cents > 0
            ELSE false
        END),
    CONSTRAINT payment_attempts_applied CHECK (NOT applied OR (state = 'succeeded' AND captured_cents = amount_cents))
);
CREATE UNIQUE INDEX payment_attempts_live ON payment_attempts (order_id) WHERE state IN ('creating', 'open');
CREATE UNIQUE INDEX payment_attempts_applied ON payment_attempts (order_id) WHERE applied;
-- The worker reads those attempts of some orders that must be looked at, and the reconciler all of them.
CREATE INDEX payment_attempts_due ON payment_attempts (order_id) WHERE next_check IS NOT NULL;

-- The ids of the provider's events, to store each event once. The bodies hold personal data and are not stored.
CREATE TABLE provider_events (
    id          text PRIMARY KEY,
    type        text        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX provider_events_received ON provider_events (received_at);

CREATE TABLE refunds (
    id           uuid PRIMARY KEY,
    attempt_id   uuid        NOT NULL UNIQUE REFERENCES payment_attempts ON DELETE CASCADE,
    reason       text        NOT NULL CHECK (reason IN ('late', 'duplicate', 'mismatch')),
    amount_cents bigint      NOT NULL CHECK (amount_cents > 0),
    try          int         NOT NULL DEFAULT 1 CHECK (try > 0), -- part of the key that the provider deduplicates by
    state        text        NOT NULL DEFAULT 'owed',
    provider_id  text        UNIQUE,
    error        text, -- why it failed, or why the provider rejected the last try
    created_at   timestamptz NOT NULL,
    next_check   timestamptz,
    ended_at     timestamptz,

    -- owed: not known to the provider · sent: the provider has it, and has not confirmed it yet · confirmed: the
    -- customer has the money · failed: the provider could not return the money, an operator must act
    CONSTRAINT refunds_state CHECK (
        CASE state
            WHEN 'owed'      THEN ended_at IS NULL     AND next_check IS NOT NULL
            WHEN 'sent'      THEN ended_at IS NULL     AND next_check IS NOT NULL AND provider_id IS NOT NULL
            WHEN 'confirmed' THEN ended_at IS NOT NULL AND provider_id IS NOT NULL
            WHEN 'failed'    THEN ended_at IS NOT NULL
            ELSE false
        END)
);
CREATE INDEX refunds_due ON refunds (next_check) WHERE next_check IS NOT NULL;
CREATE INDEX refunds_failed ON refunds (ended_at) WHERE state = 'failed';

-- +goose Down
DELETE FROM outbox WHERE kind IN ('payment.settle', 'refund.send');
DELETE FROM reconcile_reports WHERE kind IN ('payment.settle', 'refund.send');
DROP TABLE refunds, provider_events, payment_attempts;
