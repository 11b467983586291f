-- Returns one JSON object: the attempts and refunds by state, the webhooks of the last hour, and the money of each
-- currency. See openapi.yaml, PaymentStats.
WITH attempt AS (
    SELECT CASE WHEN a.state = 'open' AND (o.status <> 'pending'
                       OR checkout_closes_at(o.expires_at, o.cancel_requested_at, a.checkout_until, a.session_until) <= now())
                THEN 'closing' ELSE a.state END AS state,
           upper(a.currency) AS currency, a.applied, a.captured_cents, a.disputed_cents, a.next_check
    FROM payment_attempts a LEFT JOIN orders o ON o.id = a.order_id
),
refund AS (
    SELECT r.state, r.amount_cents, r.next_check, upper(a.currency) AS currency
    FROM refunds r JOIN payment_attempts a ON a.id = r.attempt_id
),
money AS (
    -- An attempt may have several refunds, so the two are summed up apart.
    SELECT currency, captured_cents, applied_cents, disputed_cents, coalesce(returned_cents, 0) AS returned_cents,
           coalesce(outside_cents, 0) AS outside_cents, coalesce(owed_cents, 0) AS owed_cents
    FROM (
        SELECT currency, sum(captured_cents) AS captured_cents, sum(disputed_cents) AS disputed_cents,
               coalesce(sum(captured_cents) FILTER (WHERE applied), 0) AS applied_cents
        FROM attempt
        WHERE captured_cents > 0
        GROUP BY currency
    ) AS captured LEFT JOIN (
        SELECT currency, sum(amount_cents) FILTER (WHERE state = 'confirmed') AS returned_cents,
               sum(amount_cents) FILTER (WHERE state = 'settled_outside') AS outside_cents,
               sum(amount_cents) FILTER (WHERE state IN ('owed', 'sent', 'failed')) AS owed_cents
        FROM refund
        GROUP BY currency
    ) AS refunded USING (currency)
)
SELECT json_build_object(
    'attempts', (
        SELECT json_build_object('creating', count(*) FILTER (WHERE state = 'creating'), 'open', count(*) FILTER (WHERE state = 'open'),
                                 'closing', count(*) FILTER (WHERE state = 'closing'), 'closed', count(*) FILTER (WHERE state = 'closed'),
                                 'succeeded', count(*) FILTER (WHERE state = 'succeeded'))
        FROM attempt
    ),
    'refunds', (
        SELECT json_build_object('owed', count(*) FILTER (WHERE state = 'owed'), 'sent', count(*) FILTER (WHERE state = 'sent'),
                                 'confirmed', count(*) FILTER (WHERE state = 'confirmed'), 'failed', count(*) FILTER (WHERE state = 'failed'),
                                 'settled_outside', count(*) FILTER (WHERE state = 'settled_outside'))
        FROM refund
    ),
    'oldest_check_overdue_seconds', (
        SELECT greatest(0, coalesce(extract(epoch FROM clock_timestamp() - min(next_check)), 0))::float8
        FROM (SELECT next_check FROM attempt UNION ALL SELECT next_check FROM refund) AS checks
    ),
    'webhooks', (
        SELECT json_build_object('last_hour', count(*) FILTER (WHERE received_at > now() - interval '1 hour'), 'last_at', max(received_at))
        FROM provider_events
    ),
    'money', (SELECT coalesce(json_agg(money ORDER BY currency), '[]') FROM money),
    'failed_refunds', (
        SELECT coalesce(json_agg(failed ORDER BY ended_at DESC), '[]')
        FROM (
            SELECT r.id, coalesce(a.order_id, a.removed_order) AS order_id, r.amount_cents, upper(a.currency) AS currency, r.error, r.ended_at
            FROM refunds r JOIN payment_attempts a ON a.id = r.attempt_id
            WHERE r.state = 'failed'
            ORDER BY r.ended_at DESC
            LIMIT 20
        ) AS failed
    ),
    'unconfirmed_refunds', (
        SELECT coalesce(json_agg(unconfirmed ORDER BY created_at), '[]')
        FROM (
            SELECT r.id, coalesce(a.order_id, a.removed_order) AS order_id, r.state, r.amount_cents, upper(a.currency) AS currency, r.error, r.created_at
            FROM refunds r JOIN payment_attempts a ON a.id = r.attempt_id
            WHERE r.state IN ('owed', 'sent')
            ORDER BY r.created_at
            LIMIT 20
        ) AS unconfirmed
    )
) AS stats
