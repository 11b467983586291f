-- +goose Up
-- While a session has a snapshot open, for a long query or a backup, the old versions of a product stay, and each lookup of the product
-- visits them. Nine tenths of each page are for new versions of its products, so that the versions lie in few pages. A million products take
-- a gigabyte. Pages that are full stay as they are until their products are updated.
ALTER TABLE products SET (fillfactor = 10);

-- +goose Down
ALTER TABLE products SET (fillfactor = 50);
