-- +goose NO TRANSACTION
-- +goose Up
-- The books of stock: what was sold is summed up per product, so that the invariants need not read every order. The
-- orders that exist become not booked, and the booker books them in batches. An older binary that runs beside this schema
-- ends orders as before: they are not booked either. Each statement may be repeated. Outside of a transaction, neither the
-- new index nor the validation blocks the service.

-- The units of a product in the booked paid orders. They are not a column of products: a booking would block placements.
CREATE TABLE IF NOT EXISTS stock_books (
    product_id uuid   PRIMARY KEY REFERENCES products,
    sold       bigint NOT NULL CHECK (sold > 0)
) WITH (fillfactor = 50);

-- booked: the order has ended, and its items are in stock_books if it was paid
ALTER TABLE orders ADD COLUMN IF NOT EXISTS booked boolean NOT NULL DEFAULT false;
ALTER TABLE orders DROP CONSTRAINT IF EXISTS orders_booked,
    ADD CONSTRAINT orders_booked CHECK (NOT booked OR status <> 'pending') NOT VALID;
ALTER TABLE orders VALIDATE CONSTRAINT orders_booked;
-- The booker and the invariants read the ended orders that are not booked. An interrupted CREATE INDEX CONCURRENTLY leaves an
-- index that no statement uses.
DROP INDEX IF EXISTS orders_not_booked;
SET lock_timeout = 0; -- see package migrations
CREATE INDEX CONCURRENTLY orders_not_booked ON orders (id) WHERE NOT booked AND status <> 'pending';
SET lock_timeout = '2s';

-- +goose Down
DROP INDEX IF EXISTS orders_not_booked;
ALTER TABLE orders DROP COLUMN IF EXISTS booked;
DROP TABLE IF EXISTS stock_books;
