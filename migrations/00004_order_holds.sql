-- +goose Up
-- An order can be held while its customer pays it elsewhere, and its deadline can move. So the time when an unpaid order
-- ends, due_at, is no longer its deadline, expires_at:
--
--   hold_until           the end of the hold; NULL: the order is not held
--   cancel_requested_at  the customer's request to cancel; a held order is cancelled when its hold ends
--   due_at               when the order ends unless it is paid before
--
-- PostgreSQL rewrites the table for due_at, and other sessions wait meanwhile: some seconds for a million orders.
-- Processes of the version before this migration cannot cancel orders for customers after it. They know no holds: they
-- would pay a held order a second time, and their workers fail to cancel it at its deadline. Replace all of them before
-- any process holds orders.
ALTER TABLE orders
    DROP CONSTRAINT orders_check1, -- paid_at < expires_at
    DROP CONSTRAINT orders_cancel_reason,
    ADD COLUMN hold_until          timestamptz,
    ADD COLUMN cancel_requested_at timestamptz,
    ADD COLUMN extended_at         timestamptz; -- when the customer extended the deadline; at most once
UPDATE orders SET cancel_requested_at = cancelled_at WHERE cancel_reason = 'customer';
ALTER TABLE orders
    ADD COLUMN due_at timestamptz NOT NULL
        GENERATED ALWAYS AS (coalesce(hold_until, least(expires_at, cancel_requested_at))) STORED,
    ADD CONSTRAINT orders_hold_until CHECK (hold_until > expires_at),
    ADD CONSTRAINT orders_cancel_requested_at CHECK (cancel_requested_at < expires_at),
    ADD CONSTRAINT orders_extended_at CHECK (extended_at < expires_at),
    ADD CONSTRAINT orders_paid_at CHECK (paid_at < due_at),
    ADD CONSTRAINT orders_cancelled_at CHECK (cancelled_at >= due_at),
    ADD CONSTRAINT orders_cancel_reason CHECK (
        CASE cancel_reason
            WHEN 'timeout'  THEN cancel_requested_at IS NULL
            WHEN 'customer' THEN cancel_requested_at IS NOT NULL
            ELSE cancel_reason IS NULL
        END);

DROP INDEX orders_pending_deadline;
CREATE INDEX orders_pending_deadline ON orders (due_at, id) WHERE status = 'pending';

ALTER TABLE order_events
    DROP CONSTRAINT order_events_type_check,
    DROP CONSTRAINT order_events_actor_check,
    ADD CONSTRAINT order_events_type CHECK (type IN
        ('placed', 'reminded', 'extended', 'brought_forward', 'held', 'released', 'cancel_requested', 'paid', 'cancelled')),
    ADD CONSTRAINT order_events_actor CHECK (actor IN ('customer', 'worker', 'reconciler', 'operator', 'provider'));
-- A reminder may be delivered several times and adds one event.
CREATE UNIQUE INDEX order_events_reminded ON order_events (order_id) WHERE type = 'reminded';

-- +goose Down
DELETE FROM order_events WHERE type NOT IN ('placed', 'paid', 'cancelled');
UPDATE order_events SET actor = 'worker' WHERE actor IN ('operator', 'provider');
DROP INDEX order_events_reminded;
ALTER TABLE order_events
    DROP CONSTRAINT order_events_type,
    DROP CONSTRAINT order_events_actor,
    ADD CONSTRAINT order_events_type_check CHECK (type IN ('placed', 'paid', 'cancelled')),
    ADD CONSTRAINT order_events_actor_check CHECK (actor IN ('customer', 'worker', 'reconciler'));
DROP INDEX orders_pending_deadline;
ALTER TABLE orders
    DROP CONSTRAINT orders_paid_at,
    DROP CONSTRAINT orders_cancelled_at,
    DROP CONSTRAINT orders_cancel_reason;
-- The older constraints know no holds: the deadline of an order that ended after its hold becomes the end of the hold.
UPDATE orders SET expires_at = hold_until, hold_until = NULL WHERE hold_until IS NOT NULL;
UPDATE orders SET cancelled_at = cancel_requested_at WHERE cancel_reason = 'customer';
ALTER TABLE orders
    DROP COLUMN due_at,
    DROP COLUMN extended_at,
    DROP COLUMN cancel_requested_at,
    DROP COLUMN hold_until,
    ADD CONSTRAINT orders_check1 CHECK (paid_at < expires_at),
    ADD CONSTRAINT orders_cancel_reason CHECK (
        CASE cancel_reason
            WHEN 'timeout'  THEN cancelled_at >= expires_at
            WHEN 'customer' THEN cancelled_at < expires_at
            ELSE cancel_reason IS NULL
        END);
CREATE INDEX orders_pending_deadline ON orders (expires_at, id) WHERE status = 'pending';
