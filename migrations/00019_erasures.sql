-- +goose Up
-- The customers who asked to be erased, and of whom something is left.
CREATE TABLE erasures (
    customer_id  uuid PRIMARY KEY, -- without a reference: the customer's row is erased before the request ends
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- +goose Down
DROP TABLE erasures;
