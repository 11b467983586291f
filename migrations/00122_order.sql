-- +goose Up
-- CHECK constraints tie an order's status to its timestamps, and its timestamps to the time when it ends unpaid, so that
-- no statement of any package can store a late payment, an early timeout, or an order that is both paid and cancelled.

CREATE TABLE products (
    id          uuid PRIMARY KEY,
    name        text   NOT NULL CHECK (name <> ''),
    price_cents bigint NOT NULL CHECK (price_cents BETWEEN 1 AND 1000000000), -- in the currency's smallest unit
    currency    text   NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    supply      bigint NOT NULL CHECK (supply >= 0),
    available   bigint NOT NULL CHECK (available BETWEEN 0 AND supply)
) WITH (
    -- Placements update a product often. While a session has a snapshot open, for a long query or a backup, the old
    -- versions of the product stay, and each lookup visits them. Nine tenths of each page are free for new versions,
    -- so that the versions of a product lie in few pages. A million products take a gigabyte.
    fillfactor = 10
);

-- Columns of fixed length come first, so that a row needs little padding.
CREATE TABLE orders (
    id              uuid PRIMARY KEY,
    customer_id     uuid        NOT NULL, -- customers have no table: a sign-up gives a token with an id
    created_at      timestamptz NOT NULL,
    expires_at      timestamptz NOT NULL, -- the deadline: the order must be paid earlier, unless it is held
    -- when the order ends unless it is paid or cancelled before
    due_at          timestamptz NOT NULL GENERATED ALWAYS AS (coalesce(hold_until, expires_at)) STORED,
    total_cents     bigint      NOT NULL CHECK (total_cents > 0), -- in the currency's smallest unit
    extensions      smallint    NOT NULL DEFAULT 0 CHECK (extensions >= 0), -- how often its customer moved the deadline
    booked          boolean     NOT NULL DEFAULT false, -- it has ended, and stock_books has its items if it was paid
    status          text        NOT NULL DEFAULT 'pending',
    currency        text        NOT NULL,
    idempotency_key text,
    fingerprint     bytea,
    span            bytea,       -- in which the order was placed, as package order writes it; NULL: it was not traced
    cancel_reason   text,
    ended_by        text,        -- the actor that paid or cancelled the order
    paid_at         timestamptz,
    cancelled_at    timestamptz,
    -- Another package holds the order until this time, while its customer pays it elsewhere; NULL: it is not held.
    hold_until      timestamptz,

    CONSTRAINT orders_status CHECK (
        CASE status
            WHEN 'pending'   THEN paid_at IS NULL     AND cancelled_at IS NULL     AND cancel_reason IS NULL
            WHEN 'paid'      THEN paid_at IS NOT NULL AND cancelled_at IS NULL     AND cancel_reason IS NULL
            WHEN 'cancelled' THEN paid_at IS NULL     AND cancelled_at IS NOT NULL AND cancel_reason IS NOT NULL
            ELSE false
        END),
    CONSTRAINT orders_cancel_reason CHECK (cancel_reason IN ('timeout', 'customer')),
    CONSTRAINT orders_ended_by CHECK (
        CASE status
            WHEN 'pending' THEN ended_by IS NULL
            ELSE coalesce(ended_by IN ('customer', 'worker', 'reconciler', 'provider'), false)
        END),
    -- A customer pays or cancels an order only while it is not held, and a provider pays it only while it is.
    CONSTRAINT orders_held CHECK (
        CASE ended_by
            WHEN 'customer' THEN hold_until IS NULL
            WHEN 'provider' THEN hold_until IS NOT NULL
            ELSE true
        END),
    CONSTRAINT orders_expires_at CHECK (expires_at > created_at AND isfinite(expires_at)),
    CONSTRAINT orders_hold_until CHECK (hold_until > expires_at AND isfinite(hold_until)),
    CONSTRAINT orders_paid_at CHECK (paid_at < due_at),
    CONSTRAINT orders_cancelled_at CHECK ((cancelled_at < due_at) = (cancel_reason = 'customer')),
    CONSTRAINT orders_booked CHECK (NOT booked OR status <> 'pending'),
    CONSTRAINT orders_idempotency CHECK ((idempotency_key IS NULL) = (fingerprint IS NULL)),
    CONSTRAINT orders_idempotency_key UNIQUE (customer_id, idempotency_key)
) WITH (
    -- Each update of an order changes an indexed column, so that none is HOT, and free space in its page would have
    -- no use. Autovacuum frees old versions when they are a twentieth of the table, and not a fifth, so that new
    -- orders take their place.
    autovacuum_vacuum_scale_factor = 0.05
);

-- Each new version of an order needs an entry in most indexes of its table. So an index that no statement needs costs
-- an entry when the order is placed, and another one when it ends.

-- The reconciler scans pending orders by the time when they end, overdue ones first. A partial index grows with the
-- pending orders, not with the table.
CREATE INDEX orders_pending_deadline ON orders (due_at, id) WHERE status = 'pending';
-- A placement counts the pending orders of its customer.
CREATE INDEX orders_open ON orders (customer_id) WHERE status = 'pending';
-- The list of a customer's orders, newest first, is paged by keyset.
CREATE INDEX orders_customer ON orders (customer_id, created_at DESC, id DESC);
-- The lateness figures read the most recent timeouts.
CREATE INDEX orders_timed_out ON orders (cancelled_at) WHERE cancel_reason = 'timeout';
-- The booker and the invariants read the ended orders that are not booked.
CREATE INDEX orders_not_booked ON orders (id) WHERE NOT booked AND status <> 'pending';

-- The name and the price are those of the product when it was ordered.
CREATE TABLE order_items (
    order_id         uuid   NOT NULL REFERENCES orders ON DELETE CASCADE,
    product_id       uuid   NOT NULL REFERENCES products,
    quantity         bigint NOT NULL CHECK (quantity > 0),
    unit_price_cents bigint NOT NULL CHECK (unit_price_cents > 0),
    name             text   NOT NULL,
    PRIMARY KEY (order_id, product_id)
);

-- The books of stock: the units of a product in its booked paid orders. The invariants need not read every order,
-- because what was sold is summed up here. It is not a column of products, because a booking would then block
-- placements.
CREATE TABLE stock_books (
    product_id uuid   PRIMARY KEY REFERENCES products,
    sold       bigint NOT NULL CHECK (sold > 0)
) WITH (
    fillfactor = 50 -- A booking updates the row of each product that it sums up; the free half keeps these updates HOT.
);

-- What happened to an order between its placement and its end. The row of the order has its placement and its end.
CREATE TABLE order_events (
    id       bigint      GENERATED ALWAYS AS IDENTITY,
    order_id uuid        NOT NULL REFERENCES orders ON DELETE CASCADE,
    type     text        NOT NULL CONSTRAINT order_events_type CHECK (type IN
        ('reminded', 'rescheduled', 'held', 'released')),
    actor    text        NOT NULL CONSTRAINT order_events_actor CHECK (actor IN
        ('customer', 'worker', 'reconciler', 'operator', 'provider')),
    at       timestamptz NOT NULL,
    deadline timestamptz, -- the new one
    reason   text,        -- that an operator gave
    PRIMARY KEY (order_id, id), -- all statements read the events of given orders, and none reads an event by its id alone
    CONSTRAINT order_events_rescheduled CHECK (
        (type = 'rescheduled') = (deadline IS NOT NULL) AND (type = 'rescheduled' AND actor = 'operator') = (reason IS NOT NULL))
);

-- The audit trail. The time sorts the entries of an order, and the number those of one time. The end has the largest
-- number, so that it comes last.
CREATE VIEW order_trail AS
    SELECT id AS order_id, 0::bigint AS number, 'placed' AS type, 'customer' AS actor, created_at AS at,
           NULL::timestamptz AS deadline, NULL AS reason
    FROM orders
    UNION ALL
    SELECT order_id, id, type, actor, at, deadline, reason FROM order_events
    UNION ALL
    SELECT id, 9223372036854775807, status, ended_by, coalesce(paid_at, cancelled_at), NULL, NULL FROM orders WHERE status <> 'pending';

-- +goose Down
DELETE FROM outbox WHERE kind = 'order.cancel';
DELETE FROM reconcile_reports WHERE kind = 'order.cancel';
DROP VIEW order_trail;
DROP TABLE order_events, stock_books, order_items, orders, products;
