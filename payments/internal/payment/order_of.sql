-- Returns the order of the payment or refund that has this id, at the provider or here.
--
-- $1 the id · $2 the id, or NULL if it is no UUID
SELECT coalesce(order_id, removed_order) AS order_id FROM payment_attempts
WHERE session_id = $1 OR payment_intent = $1 OR id = $2::uuid
UNION
SELECT coalesce(a.order_id, a.removed_order) FROM refunds r JOIN payment_attempts a ON a.id = r.attempt_id
WHERE r.provider_id = $1 OR r.id = $2::uuid
