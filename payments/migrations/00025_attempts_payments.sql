-- +goose Up
-- An attempt whose session came to its own end, after almost a day, does not count towards the most attempts of an order.
ALTER TABLE payment_attempts DROP CONSTRAINT payment_attempts_number_check;
-- +goose Down
-- Rows that the older schema cannot hold must be removed by hand first.
ALTER TABLE payment_attempts ADD CONSTRAINT payment_attempts_number_check CHECK (number BETWEEN 1 AND 20);
