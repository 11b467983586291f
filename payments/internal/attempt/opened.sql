-- Stores the provider's session of an attempt that is creating, so that the customer may learn its URL. Returns what
-- the customer may know, or no row if the attempt is not creating any more, or if its closing has begun. An answer
-- that comes after the deadline is not too late: the attempt was opened before.
--
-- $1 attempt id · $2 session id · $3 URL of the checkout
WITH locked AS MATERIALIZED (
    SELECT * FROM orders WHERE id = (SELECT order_id FROM payment_attempts WHERE id = $1::uuid) FOR UPDATE
),
decided AS MATERIALIZED (
    SELECT *, clock_timestamp() AS at FROM locked
)
UPDATE payment_attempts a
SET state = 'open', was_open = true, session_id = $2::text, checkout_url = $3::text
FROM decided d
WHERE a.id = $1::uuid AND a.state = 'creating'
  AND d.status = 'pending' AND d.hold_until IS NOT NULL
  AND d.at < greatest(d.expires_at, a.checkout_until)
RETURNING a.checkout_url, least(greatest(d.expires_at, a.checkout_until), a.session_until) AS checkout_until
