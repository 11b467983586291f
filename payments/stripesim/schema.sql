-- The simulator's own tables. Open runs this file each time, so every statement leaves alone what exists already.

CREATE SCHEMA IF NOT EXISTS stripesim;

-- A session's status changes once, by one conditional UPDATE: from open to complete or to expired.
CREATE TABLE IF NOT EXISTS stripesim.sessions (
    id                  text        PRIMARY KEY,
    seq                 bigint      GENERATED ALWAYS AS IDENTITY UNIQUE, -- the order of lists
    status              text        NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'complete', 'expired')),
    client_reference_id text,
    amount_total        bigint      NOT NULL CHECK (amount_total > 0),
    currency            text        NOT NULL,
    item                text        NOT NULL,
    metadata            json        NOT NULL,
    adaptive_pricing    boolean     NOT NULL,
    success_url         text        NOT NULL,
    cancel_url          text,
    created_at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at          timestamptz NOT NULL,
    bank_pays_at        timestamptz, -- the time when the customer's bank confirms the payment, if it asks the customer
    payment_intent      text        UNIQUE,
    payment_metadata    json        NOT NULL, -- of the payment intent and its charge
    unpaid              boolean     NOT NULL DEFAULT false, -- complete, and the payment method pays later
    expired_by_api      boolean     NOT NULL DEFAULT false,
    account             text        NOT NULL,
    livemode            boolean     NOT NULL,
    CHECK ((status = 'complete') = (payment_intent IS NOT NULL))
);
CREATE INDEX IF NOT EXISTS sessions_unpaid ON stripesim.sessions (seq) WHERE unpaid;
CREATE INDEX IF NOT EXISTS sessions_open ON stripesim.sessions (expires_at) WHERE status = 'open';
CREATE INDEX IF NOT EXISTS sessions_bank ON stripesim.sessions (bank_pays_at)
    WHERE status = 'open' AND bank_pays_at IS NOT NULL;

-- A row is a captured payment.
CREATE TABLE IF NOT EXISTS stripesim.payment_intents (
    id         text        PRIMARY KEY,
    session_id text        NOT NULL UNIQUE REFERENCES stripesim.sessions,
    amount     bigint      NOT NULL CHECK (amount > 0),
    currency   text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The account's books: a row is a movement of money, and is inserted in the transaction that moves the money. The amount
-- and the currency are those of the source.
CREATE TABLE IF NOT EXISTS stripesim.balance_transactions (
    id                 text        PRIMARY KEY,
    seq                bigint      GENERATED ALWAYS AS IDENTITY UNIQUE, -- the order of lists
    reporting_category text        NOT NULL
        CHECK (reporting_category IN ('charge', 'refund', 'refund_failure', 'dispute', 'dispute_reversal')),
    source             text        NOT NULL, -- the id of the charge, the refund or the dispute
    payment_intent     text        NOT NULL REFERENCES stripesim.payment_intents,
    amount             bigint      NOT NULL, -- what the account gets: negative if money leaves it
    currency           text        NOT NULL,
    created_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    CHECK (CASE WHEN reporting_category IN ('refund', 'dispute') THEN amount < 0 ELSE amount > 0 END)
);

CREATE TABLE IF NOT EXISTS stripesim.refunds (
    id             text        PRIMARY KEY,
    seq            bigint      GENERATED ALWAYS AS IDENTITY UNIQUE, -- the order of lists
    payment_intent text        NOT NULL REFERENCES stripesim.payment_intents,
    amount         bigint      NOT NULL CHECK (amount > 0),
    currency       text        NOT NULL,
    metadata       json        NOT NULL,
    status         text        NOT NULL
        CHECK (status IN ('pending', 'requires_action', 'succeeded', 'failed', 'canceled')),
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    fails_at       timestamptz, -- the time when a refund that has succeeded fails
    account        text        NOT NULL,
    livemode       boolean     NOT NULL
);
CREATE INDEX IF NOT EXISTS refunds_failing ON stripesim.refunds (fails_at) WHERE status = 'succeeded' AND fails_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS refunds_of_payment ON stripesim.refunds (payment_intent);
CREATE INDEX IF NOT EXISTS refunds_pending ON stripesim.refunds (seq) WHERE status = 'pending';

-- A dispute withdraws its amount, and a dispute that is won returns it. A payment has at most one.
CREATE TABLE IF NOT EXISTS stripesim.disputes (
    id             text        PRIMARY KEY,
    payment_intent text        NOT NULL UNIQUE REFERENCES stripesim.payment_intents,
    amount         bigint      NOT NULL CHECK (amount > 0),
    currency       text        NOT NULL,
    status         text        NOT NULL DEFAULT 'needs_response' CHECK (status IN ('needs_response', 'won', 'lost')),
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at       timestamptz,
    account        text        NOT NULL,
    livemode       boolean     NOT NULL
);

-- A row is an event for the merchant's endpoint. An event that is doubled has two rows with the same id.
CREATE TABLE IF NOT EXISTS stripesim.events (
    seq    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id     text        NOT NULL,
    type   text        NOT NULL,
    body   json        NOT NULL, -- of the webhook, with the object as it was when the event happened
    state  text        NOT NULL CHECK (state IN ('not_sent', 'waiting', 'delivered', 'given_up')),
    due_at timestamptz NOT NULL, -- of the next try
    held   boolean     NOT NULL, -- reordered: is sent with the other events that are held, the newest first
    tries  integer     NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS events_waiting ON stripesim.events (due_at) WHERE state = 'waiting';

CREATE TABLE IF NOT EXISTS stripesim.idempotency_keys (
    key        text        PRIMARY KEY,
    request    text        NOT NULL, -- the method, the path and the parameters
    status     integer     NOT NULL,
    body       bytea       NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX IF NOT EXISTS idempotency_keys_created ON stripesim.idempotency_keys (created_at);
