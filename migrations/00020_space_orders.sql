-- +goose Up
-- Each update of an order changes an indexed column, so none is HOT, and free space that a page keeps for updates has no use. Autovacuum
-- frees the old versions sooner than by default, so that new orders take their place.
ALTER TABLE orders RESET (fillfactor);
ALTER TABLE orders SET (autovacuum_vacuum_scale_factor = 0.05);

-- +goose Down
ALTER TABLE orders RESET (autovacuum_vacuum_scale_factor);
ALTER TABLE orders SET (fillfactor = 80);
