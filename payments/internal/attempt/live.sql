-- Returns whether an order of a customer is paid, and its live attempt, if it has one. It takes nothing and locks
-- nothing: each step after it is conditional. Returns no row if the customer has no such order.
--
-- $1 order id · $2 customer id · $3 age from which an attempt is stale, in microseconds
SELECT o.status, o.paid_at, a.id, a.order_id, a.state, coalesce(a.session_id, '') AS session_id, a.closes_at <= clock_timestamp() AS closing,
       a.next_check, o.status <> 'pending' AS order_ended,
       clock_timestamp() - a.opened_at >= $3::bigint * interval '1 microsecond' AS stale
FROM orders o LEFT JOIN payment_attempts a ON a.order_id = o.id AND a.state IN ('creating', 'open')
WHERE o.id = $1::uuid AND o.customer_id = $2::uuid
