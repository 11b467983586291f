-- Returns the orders that must stay: something is checked again later, an operator must act, a dispute has withdrawn
-- money, the provider has money with the order's id that is not claimed, or it may have an open session of which no
-- answer came. Without its attempt such a session would count as lost. It expires by itself; an hour is for the
-- provider's clock.
--
-- $1 order ids
SELECT a.order_id AS id FROM payment_attempts a
WHERE a.order_id = ANY ($1::uuid[])
  AND (a.next_check IS NOT NULL OR a.state IN ('creating', 'open') OR a.disputed_cents > 0
   OR EXISTS (SELECT FROM refunds r WHERE r.attempt_id = a.id AND (r.next_check IS NOT NULL OR r.state = 'failed'))
   OR a.state = 'closed' AND EXISTS (SELECT FROM provider_movements WHERE attempt_id = a.id)
   OR a.state = 'closed' AND a.session_id IS NULL AND a.session_expires_at > now() - interval '1 hour')
UNION
SELECT m.meta_order
FROM provider_movements m LEFT JOIN unclaimed_payments u ON u.intent = m.intent
WHERE m.attempt_id IS NULL AND m.meta_order = ANY ($1::uuid[]) AND u.kept_at IS NULL
  AND (SELECT sum(net_cents) FROM provider_movements n WHERE n.intent = m.intent AND n.attempt_id IS NULL) > 0
