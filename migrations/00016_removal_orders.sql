-- +goose Up
-- Old orders are removed. What they sold stays in the books.
ALTER TABLE stock_books
    ADD COLUMN removed bigint NOT NULL DEFAULT 0, -- the units of sold whose orders are removed
    ADD CONSTRAINT stock_books_removed CHECK (removed BETWEEN 0 AND sold);

-- +goose Down
ALTER TABLE stock_books DROP COLUMN removed;
