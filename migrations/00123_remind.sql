-- +goose Up
-- A reminder may be delivered several times and adds one event.
CREATE UNIQUE INDEX order_events_reminded ON order_events (order_id) WHERE type = 'reminded';

-- +goose Down
-- The events of reminders remain: they belong to the orders' audit trail.
DROP INDEX order_events_reminded;
