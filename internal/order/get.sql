-- Returns one of a customer's orders. order.sql follows.
--
-- $1 order id · $2 customer id
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS at
),
result AS (
    SELECT *, false AS changed FROM orders WHERE id = $1::uuid AND customer_id = $2::uuid
)
