-- +goose Up
-- The movements of the provider's books that are, or may be, this deployment's. Foreign ones are only counted.
CREATE TABLE provider_movements (
    id           text PRIMARY KEY,              -- the provider's id of the row
    provider     text        NOT NULL DEFAULT 'stripe',
    kind         text        NOT NULL CHECK (kind IN ('captured', 'refunded', 'refund_failed', 'disputed', 'dispute_reversed')),
    at           timestamptz NOT NULL,          -- by the provider's clock
    amount_cents bigint      NOT NULL CHECK (amount_cents > 0), -- of the source, in its currency
    currency     text        NOT NULL,
    source_id    text        NOT NULL,          -- charge, refund or dispute
    intent       text        NOT NULL,
    refund_id    uuid,                          -- our refund, by its metadata
    meta_order   uuid, meta_attempt uuid,       -- by the metadata; they may not exist here
    attempt_id   uuid REFERENCES payment_attempts ON DELETE RESTRICT, -- what it was matched with; NULL: unclaimed
    report       bigint      NOT NULL           -- the report that counts it
);
CREATE INDEX provider_movements_intent ON provider_movements (intent);
CREATE INDEX provider_movements_unclaimed ON provider_movements (intent) WHERE attempt_id IS NULL;
CREATE INDEX provider_movements_report ON provider_movements (report);
-- What an operator decided about unclaimed money, by payment intent.
CREATE TABLE unclaimed_payments (
    intent       text PRIMARY KEY,
    incident_id  uuid REFERENCES payment_incidents,
    seen_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    state        text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'refunding', 'refunded', 'kept')),
    amount_cents bigint, provider_id text, note text, actor text, ended_at timestamptz
);
CREATE TABLE payment_books (
    only_row boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    position timestamptz NOT NULL,              -- all movements before it are read
    next_run timestamptz NOT NULL,
    report   bigint      NOT NULL DEFAULT 0
);
CREATE TABLE payment_reports (
    number  bigint PRIMARY KEY,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    report  jsonb  NOT NULL
);
-- Events that matched nothing: they are looked at, and not only counted.
ALTER TABLE provider_events ADD COLUMN outcome text NOT NULL DEFAULT 'matched'
    CHECK (outcome IN ('matched', 'unmatched', 'foreign', 'other_mode', 'other_type'));
CREATE INDEX provider_events_unmatched ON provider_events (received_at) WHERE outcome = 'unmatched';
-- +goose Down
ALTER TABLE provider_events DROP COLUMN outcome;
DROP TABLE payment_reports, payment_books, unclaimed_payments, provider_movements;
