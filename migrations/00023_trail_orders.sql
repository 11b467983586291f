-- +goose NO TRANSACTION
-- +goose Up
-- The row of an order says who placed it, who ended it, and when. So an order ends at most once, and order_events need only have what
-- happened in between. Older binaries write events of placements and ends, also beside this schema. These events stay. Each statement may
-- be repeated. Outside of a transaction, the validation does not block the service.

-- The actor that paid or cancelled the order. It is NULL while the order is pending, and if an older binary ended the order.
ALTER TABLE orders ADD COLUMN IF NOT EXISTS ended_by text;
ALTER TABLE orders DROP CONSTRAINT IF EXISTS orders_ended_by,
    ADD CONSTRAINT orders_ended_by CHECK (
        CASE status
            WHEN 'pending' THEN ended_by IS NULL
            ELSE ended_by IN ('customer', 'worker', 'reconciler', 'operator', 'provider') -- NULL passes, too
        END) NOT VALID;
ALTER TABLE orders VALIDATE CONSTRAINT orders_ended_by;

-- The audit trail. The number sorts the entries of an order. That of the end is the largest one, so the end is last.
CREATE OR REPLACE VIEW order_trail AS
    SELECT id AS order_id, 0::bigint AS number, 'placed' AS type, 'customer' AS actor, created_at AS at FROM orders
    UNION ALL
    SELECT order_id, id, type, actor, at FROM order_events WHERE type <> 'placed'
    UNION ALL
    SELECT id, 9223372036854775807, status, ended_by, coalesce(paid_at, cancelled_at) FROM orders WHERE ended_by IS NOT NULL;

-- +goose Down
-- Stop the newer processes first: an order that they end between the second and the third statement loses its end.
INSERT INTO order_events (id, order_id, type, actor, at) OVERRIDING SYSTEM VALUE
    SELECT 0, id, 'placed', 'customer', created_at FROM orders o
    WHERE NOT EXISTS (SELECT FROM order_events WHERE order_id = o.id AND type = 'placed');
INSERT INTO order_events (order_id, type, actor, at)
    SELECT id, status, ended_by, coalesce(paid_at, cancelled_at) FROM orders WHERE ended_by IS NOT NULL
    ON CONFLICT DO NOTHING;
ALTER TABLE orders DROP COLUMN IF EXISTS ended_by CASCADE; -- and the view
