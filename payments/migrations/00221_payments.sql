-- +goose Up
-- Payments of orders at a payment provider. The unique indexes allow an order at most one live attempt and at most one
-- success that paid it. next_check is when the attempt or refund is looked at next; NULL: there is nothing to do.

CREATE TABLE payment_attempts (
    id                 uuid PRIMARY KEY,
    order_id           uuid        NOT NULL REFERENCES orders ON DELETE RESTRICT,
    number             smallint    NOT NULL, -- of the attempt among those of its order, from 1
    amount_cents       bigint      NOT NULL CHECK (amount_cents > 0), -- in the currency's smallest unit
    currency           text        NOT NULL CHECK (currency ~ '^[a-z]{3}$'), -- lower case, as the provider writes it
    state              text        NOT NULL DEFAULT 'creating',
    applied            boolean     NOT NULL DEFAULT false, -- the success paid the order
    session_id         text        UNIQUE,
    checkout_url       text,
    payment_intent     text        UNIQUE,
    captured_cents     bigint      NOT NULL DEFAULT 0 CHECK (captured_cents >= 0),
    disputed_cents     bigint      NOT NULL DEFAULT 0 CHECK (disputed_cents >= 0), -- withdrawn by disputes, less what came back
    opened_at          timestamptz NOT NULL,
    closes_at          timestamptz NOT NULL CHECK (closes_at > opened_at), -- the customer may pay until then
    session_expires_at timestamptz NOT NULL, -- when the session expires by itself, by the provider's clock
    next_check         timestamptz,
    told_at            timestamptz, -- when a webhook, or the customer who came back, last told of its end
    ended_at           timestamptz,

    CONSTRAINT payment_attempts_number UNIQUE (order_id, number),
    CONSTRAINT payment_attempts_state CHECK (
        CASE state
            WHEN 'creating'  THEN ended_at IS NULL     AND next_check IS NOT NULL
            WHEN 'open'      THEN ended_at IS NULL     AND next_check IS NOT NULL AND session_id IS NOT NULL AND checkout_url IS NOT NULL
            WHEN 'closed'    THEN ended_at IS NOT NULL
            WHEN 'succeeded' THEN ended_at IS NOT NULL AND session_id IS NOT NULL AND payment_intent IS NOT NULL AND captured_cents > 0
            ELSE false
        END),
    CONSTRAINT payment_attempts_applied CHECK (NOT applied OR (state = 'succeeded' AND captured_cents = amount_cents)),
    CONSTRAINT payment_attempts_session CHECK (session_id <> '' AND checkout_url <> '' AND payment_intent <> '')
);
CREATE UNIQUE INDEX payment_attempts_live ON payment_attempts (order_id) WHERE state IN ('creating', 'open');
CREATE UNIQUE INDEX payment_attempts_applied ON payment_attempts (order_id) WHERE applied;
CREATE INDEX payment_attempts_due ON payment_attempts (next_check) WHERE next_check IS NOT NULL;

CREATE TABLE refunds (
    id           uuid PRIMARY KEY,
    attempt_id   uuid        NOT NULL REFERENCES payment_attempts ON DELETE RESTRICT,
    reason       text        NOT NULL CHECK (reason IN ('late', 'duplicate', 'mismatch')),
    amount_cents bigint      NOT NULL CHECK (amount_cents > 0),
    try          int         NOT NULL DEFAULT 1 CHECK (try > 0), -- part of the key that the provider deduplicates by
    state        text        NOT NULL DEFAULT 'owed',
    provider_id  text        UNIQUE,
    error        text,       -- why it failed, or why the provider rejected the last try
    note         text,
    actor        text,
    created_at   timestamptz NOT NULL,
    next_check   timestamptz,
    ended_at     timestamptz,

    -- owed: not known to the provider · sent: the provider has it, and has not confirmed it yet · confirmed: the
    -- customer has the money · failed: the provider could not return the money, an operator must act ·
    -- settled_outside: an operator returned the money in another way
    CONSTRAINT refunds_state CHECK (
        CASE state
            WHEN 'owed'            THEN ended_at IS NULL     AND next_check IS NOT NULL
            WHEN 'sent'            THEN ended_at IS NULL     AND next_check IS NOT NULL AND provider_id IS NOT NULL
            WHEN 'confirmed'       THEN ended_at IS NOT NULL AND provider_id IS NOT NULL
            WHEN 'failed'          THEN ended_at IS NOT NULL
            WHEN 'settled_outside' THEN ended_at IS NOT NULL AND next_check IS NULL AND note IS NOT NULL AND actor IS NOT NULL
            ELSE false
        END)
);
CREATE INDEX refunds_due ON refunds (next_check) WHERE next_check IS NOT NULL;
CREATE INDEX refunds_failed ON refunds (ended_at) WHERE state = 'failed';
CREATE UNIQUE INDEX refunds_of_attempt ON refunds (attempt_id);

-- Attempts as their customers see them.
CREATE VIEW payment_attempts_shown AS
    SELECT a.id, a.order_id, o.customer_id, a.number, a.state, a.applied, a.amount_cents, upper(a.currency) AS currency,
           a.state IN ('creating', 'open') AND a.closes_at <= now() AS closing,
           CASE WHEN a.closes_at > now() THEN coalesce(a.checkout_url, '') ELSE '' END AS checkout_url,
           CASE WHEN a.ended_at IS NULL AND a.closes_at > now() THEN a.closes_at END AS checkout_until,
           a.opened_at, a.ended_at, a.session_expires_at,
           CASE WHEN r.id IS NOT NULL THEN json_build_object(
               'state', r.state, 'reason', CASE WHEN r.reason = 'late' AND o.status = 'paid' THEN 'duplicate' ELSE r.reason END,
               'amount_cents', r.amount_cents, 'ended_at', r.ended_at) END AS refund
    FROM payment_attempts a JOIN orders o ON o.id = a.order_id
    LEFT JOIN refunds r ON r.attempt_id = a.id;

-- Whose payments these are, stored before the first call that writes at the provider. It has at most one row.
CREATE TABLE payment_deployment (
    only_row   boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    deployment text        NOT NULL,
    mode       text        NOT NULL CHECK (mode IN ('live', 'test')),
    account    text, -- NULL: the key may not read it
    stored_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- What an operator must look at before money that this database does not know is moved.
CREATE TABLE payment_incidents (
    id         uuid        PRIMARY KEY,
    kind       text        NOT NULL CHECK (kind IN ('lost_sessions', 'unclaimed')),
    detail     text        NOT NULL,
    opened_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    closed_at  timestamptz,
    seen_until timestamptz, -- the newest lost session that it is about, by the provider's clock
    note       text,
    actor      text,
    CHECK ((closed_at IS NULL) = (note IS NULL) AND (note IS NULL) = (actor IS NULL))
);
CREATE UNIQUE INDEX payment_incidents_open ON payment_incidents (kind) WHERE closed_at IS NULL;

-- The movements of the provider's books that are, or may be, this deployment's.
CREATE TABLE provider_movements (
    id           text PRIMARY KEY,              -- the provider's id of the row
    kind         text        NOT NULL CHECK (kind IN ('captured', 'refunded', 'refund_failed', 'disputed', 'dispute_reversed')),
    at           timestamptz NOT NULL,          -- by the provider's clock
    amount_cents bigint      NOT NULL CHECK (amount_cents > 0), -- of the source, in its currency
    net_cents    bigint      NOT NULL           -- what it adds to the money of its payment
        GENERATED ALWAYS AS (CASE WHEN kind IN ('captured', 'refund_failed', 'dispute_reversed') THEN amount_cents ELSE -amount_cents END) STORED,
    currency     text        NOT NULL,
    source_id    text        NOT NULL,          -- charge, refund or dispute
    intent       text        NOT NULL,
    refund_id    uuid,                          -- our refund, by its metadata
    meta_order   uuid,                          -- by the metadata; it may not exist here
    meta_attempt uuid,                          -- by the metadata; it may not exist here
    attempt_id   uuid        REFERENCES payment_attempts ON DELETE RESTRICT -- what it was matched with; NULL: unclaimed
);
CREATE INDEX provider_movements_intent ON provider_movements (intent);
CREATE INDEX provider_movements_unclaimed ON provider_movements (intent) WHERE attempt_id IS NULL;

-- The payments that were ever found without an attempt, by payment intent. What is unclaimed of them follows from their
-- movements. An operator keeps the money of a payment whose customer has the goods.
CREATE TABLE unclaimed_payments (
    intent  text        PRIMARY KEY,
    seen_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    kept_at timestamptz,
    note    text,
    actor   text,
    CHECK ((kept_at IS NULL) = (note IS NULL) AND (note IS NULL) = (actor IS NULL))
);

-- How far the provider's books are read: first from a day before the first payment. It has one row.
CREATE TABLE payment_books (
    only_row boolean     PRIMARY KEY DEFAULT true CHECK (only_row),
    position timestamptz NOT NULL, -- all movements before it are read
    next_run timestamptz NOT NULL
);
INSERT INTO payment_books VALUES (true, now() - interval '1 day', now());
CREATE TABLE payment_reports (
    number  bigint      PRIMARY KEY GENERATED BY DEFAULT AS IDENTITY,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    report  jsonb       NOT NULL
);

-- +goose Down
DELETE FROM outbox WHERE kind IN ('payment.settle', 'refund.send');
DELETE FROM reconcile_reports WHERE kind IN ('payment.settle', 'refund.send');
DROP VIEW payment_attempts_shown;
DROP TABLE payment_reports, payment_books, unclaimed_payments, provider_movements, payment_incidents,
    payment_deployment, refunds, payment_attempts;
