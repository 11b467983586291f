-- Decides about an unclaimed payment: to return its money, or to keep it. Returns the decision, or why there is none. A
-- decision to return money may be repeated, with the first amount: the answer of the provider may have been lost.
--
-- $1 payment intent · $2 true: keep the money · $3 note · $4 actor
WITH net AS (
    SELECT sum(net_cents)::bigint AS cents, coalesce(-sum(net_cents) FILTER (WHERE kind IN ('refunded', 'refund_failed')), 0)::bigint AS returned
    FROM provider_movements WHERE intent = $1::text AND attempt_id IS NULL
),
incident AS (SELECT EXISTS (SELECT FROM payment_incidents WHERE closed_at IS NULL) AS open),
decided AS (
    UPDATE unclaimed_payments u
    SET state = CASE WHEN $2::boolean THEN 'kept' ELSE 'refunding' END, note = $3::text, actor = $4::text,
        amount_cents = coalesce(u.amount_cents, net.cents), ended_at = CASE WHEN $2::boolean THEN clock_timestamp() END
    FROM net, incident
    WHERE u.intent = $1::text AND net.cents > 0 AND NOT incident.open
      AND (u.state = 'open' OR (u.state = 'refunding' AND NOT $2::boolean))
    RETURNING u.amount_cents, u.try
)
SELECT coalesce(u.state, '') AS state, incident.open AS incident, d.amount_cents IS NOT NULL AS decided,
       coalesce(d.amount_cents, 0) AS amount_cents, coalesce(net.returned, 0) AS returned_cents, coalesce(d.try, 0) AS try
FROM net CROSS JOIN incident LEFT JOIN unclaimed_payments u ON u.intent = $1::text LEFT JOIN decided d ON true
