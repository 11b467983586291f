-- +goose Up
-- Each event and each new version of an order needs an entry in most indexes of its table. So an index that no statement
-- needs costs an entry when the order is placed, and another one when it ends.
--
-- The statements of the version before this migration work after it. PostgreSQL builds the indexes while other sessions
-- wait: some seconds for a million orders.

-- A placement counts what its customer holds open.
CREATE INDEX orders_open ON orders (customer_id) WHERE status = 'pending';

-- All statements read the events of given orders, and none reads an event by its id alone. So one index is enough.
ALTER TABLE order_events
    DROP CONSTRAINT order_events_pkey,
    ADD PRIMARY KEY (order_id, id);
DROP INDEX order_events_order;

-- +goose Down
CREATE INDEX order_events_order ON order_events (order_id, id);
ALTER TABLE order_events
    DROP CONSTRAINT order_events_pkey,
    ADD PRIMARY KEY (id);
DROP INDEX orders_open;
