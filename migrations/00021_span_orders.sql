-- +goose Up
-- The span in which an order was placed, as package order writes it. NULL: the placement was not traced. What is done with the order
-- later links to this span.
ALTER TABLE orders ADD COLUMN span bytea;

-- +goose Down
ALTER TABLE orders DROP COLUMN span;
