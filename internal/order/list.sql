-- Returns a page of a customer's orders. order.sql follows, and sorts them.
--
-- $1 customer id · $2 time and $3 id of the last order of the page before (NULL and any id: the first page)
-- $4 maximum number of orders
WITH clock AS MATERIALIZED (
    SELECT clock_timestamp() AS at
),
result AS (
    SELECT *, false AS changed FROM orders
    WHERE customer_id = $1::uuid AND (created_at, id) < (coalesce($2::timestamptz, 'infinity'), $3::uuid)
    ORDER BY created_at DESC, id DESC
    LIMIT $4
)
