-- +goose Up
-- CHECK constraints tie an order's status to its timestamps, and its timestamps to the time when it ends unpaid: no code
-- path can store a late payment, an early timeout, or an order that is both paid and cancelled.

CREATE TABLE customers (
    id         uuid PRIMARY KEY,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE products (
    id          uuid PRIMARY KEY,
    name        text   NOT NULL CHECK (name <> ''),
    price_cents bigint NOT NULL CHECK (price_cents BETWEEN 1 AND 1000000000),
    currency    text   NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    supply      bigint NOT NULL CHECK (supply >= 0),
    available   bigint NOT NULL CHECK (available BETWEEN 0 AND supply)
) WITH (fillfactor = 50); -- Placements update products often. The free half of each page lets PostgreSQL make HOT updates.

CREATE TABLE orders (
    id                  uuid PRIMARY KEY,
    customer_id         uuid        NOT NULL REFERENCES customers,
    status              text        NOT NULL DEFAULT 'pending',
    cancel_reason       text,
    total_cents         bigint      NOT NULL CHECK (total_cents > 0),
    currency            text        NOT NULL,
    idempotency_key     text,
    fingerprint         bytea,
    created_at          timestamptz NOT NULL,
    expires_at          timestamptz NOT NULL CHECK (expires_at > created_at), -- the deadline
    paid_at             timestamptz,
    cancelled_at        timestamptz,
    -- An order is held while its customer pays it elsewhere. This is the end of the hold; NULL: the order is not held.
    hold_until          timestamptz,
    -- when the customer asked to cancel the order; a held order is cancelled when its hold ends
    cancel_requested_at timestamptz,
    -- when the customer extended the deadline; at most once
    extended_at         timestamptz,
    -- when the order ends unless it is paid before
    due_at              timestamptz NOT NULL
        GENERATED ALWAYS AS (coalesce(hold_until, least(expires_at, cancel_requested_at))) STORED,

    CONSTRAINT orders_status CHECK (
        CASE status
            WHEN 'pending'   THEN paid_at IS NULL     AND cancelled_at IS NULL     AND cancel_reason IS NULL
            WHEN 'paid'      THEN paid_at IS NOT NULL AND cancelled_at IS NULL     AND cancel_reason IS NULL
            WHEN 'cancelled' THEN paid_at IS NULL     AND cancelled_at IS NOT NULL AND cancel_reason IS NOT NULL
            ELSE false
        END),
    CONSTRAINT orders_cancel_reason CHECK (
        CASE cancel_reason
            WHEN 'timeout'  THEN cancel_requested_at IS NULL
            WHEN 'customer' THEN cancel_requested_at IS NOT NULL
            ELSE cancel_reason IS NULL
        END),
    CONSTRAINT orders_hold_until CHECK (hold_until > expires_at),
    CONSTRAINT orders_cancel_requested_at CHECK (cancel_requested_at < expires_at),
    CONSTRAINT orders_extended_at CHECK (extended_at < expires_at),
    CONSTRAINT orders_paid_at CHECK (paid_at < due_at),
    CONSTRAINT orders_cancelled_at CHECK (cancelled_at >= due_at),
    CONSTRAINT orders_idempotency CHECK ((idempotency_key IS NULL) = (fingerprint IS NULL)),
    CONSTRAINT orders_idempotency_key UNIQUE (customer_id, idempotency_key)
) WITH (fillfactor = 80);

-- Each new version of an order needs an entry in most indexes of its table. So an index that no statement needs costs an
-- entry when the order is placed, and another one when it ends.

-- The reconciler scans pending orders by the time when they end, overdue ones first. A partial index grows with the
-- pending orders, not with the table.
CREATE INDEX orders_pending_deadline ON orders (due_at, id) WHERE status = 'pending';
-- A placement counts the pending orders of its customer.
CREATE INDEX orders_open ON orders (customer_id) WHERE status = 'pending';
-- The list of a customer's orders, newest first, is paged by keyset.
CREATE INDEX orders_customer ON orders (customer_id, created_at DESC, id DESC);
-- The lateness figures read the most recent timeouts.
CREATE INDEX orders_timed_out ON orders (cancelled_at) WHERE cancel_reason = 'timeout';

CREATE TABLE order_items (
    order_id         uuid   NOT NULL REFERENCES orders ON DELETE CASCADE,
    product_id       uuid   NOT NULL REFERENCES products,
    quantity         bigint NOT NULL CHECK (quantity > 0),
    unit_price_cents bigint NOT NULL CHECK (unit_price_cents > 0),
    PRIMARY KEY (order_id, product_id)
);

-- The audit trail. The actor is the customer, a worker (a timeout handled from the queue), the reconciler (a timeout that
-- no worker handled), an operator or the payment provider.
CREATE TABLE order_events (
    id       bigint      GENERATED ALWAYS AS IDENTITY,
    order_id uuid        NOT NULL REFERENCES orders ON DELETE CASCADE,
    type     text        NOT NULL CONSTRAINT order_events_type CHECK (type IN
        ('placed', 'reminded', 'extended', 'brought_forward', 'held', 'released', 'cancel_requested', 'paid', 'cancelled')),
    actor    text        NOT NULL CONSTRAINT order_events_actor CHECK (actor IN
        ('customer', 'worker', 'reconciler', 'operator', 'provider')),
    at       timestamptz NOT NULL,
    PRIMARY KEY (order_id, id) -- all statements read the events of given orders, and none reads an event by its id alone
);
-- An order has at most one terminal event, however many requests and workers race.
CREATE UNIQUE INDEX order_events_terminal ON order_events (order_id) WHERE type IN ('paid', 'cancelled');

-- +goose Down
DELETE FROM outbox WHERE kind = 'order.cancel';
DELETE FROM reconcile_reports WHERE kind = 'order.cancel';
DROP TABLE order_events, order_items, orders, products, customers;
