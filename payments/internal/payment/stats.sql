-- Returns one JSON object: the attempts and refunds by state, and the money of each currency. See openapi.yaml,
-- PaymentStats.
WITH attempt AS (
    SELECT CASE WHEN state = 'open' AND closes_at <= now() THEN 'closing' ELSE state END AS state, next_check
    FROM payment_attempts
),
money AS (
    SELECT upper(a.currency) AS currency, sum(a.captured_cents) AS captured_cents,
           coalesce(sum(a.captured_cents) FILTER (WHERE a.applied), 0) AS applied_cents, sum(a.disputed_cents) AS disputed_cents,
           coalesce(sum(r.amount_cents) FILTER (WHERE r.state = 'confirmed'), 0) AS returned_cents,
           coalesce(sum(r.amount_cents) FILTER (WHERE r.state = 'settled_outside'), 0) AS outside_cents,
           coalesce(sum(r.amount_cents) FILTER (WHERE r.state IN ('owed', 'sent', 'failed')), 0) AS owed_cents
    FROM payment_attempts a LEFT JOIN refunds r ON r.attempt_id = a.id
    WHERE a.captured_cents > 0
    GROUP BY upper(a.currency)
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
        FROM refunds
    ),
    'oldest_check_overdue_seconds', (
        SELECT greatest(0, coalesce(extract(epoch FROM clock_timestamp() - min(next_check)), 0))::float8
        FROM (SELECT next_check FROM attempt UNION ALL SELECT next_check FROM refunds) AS checks
    ),
    'money', (SELECT coalesce(json_agg(money ORDER BY currency), '[]') FROM money),
    'failed_refunds', (
        SELECT coalesce(json_agg(failed ORDER BY ended_at DESC), '[]')
        FROM (
            SELECT r.id, a.order_id, r.amount_cents, upper(a.currency) AS currency, r.error, r.ended_at
            FROM refunds r JOIN payment_attempts a ON a.id = r.attempt_id
            WHERE r.state = 'failed'
            ORDER BY r.ended_at DESC
            LIMIT 20
        ) AS failed
    ),
    'unconfirmed_refunds', (
        SELECT coalesce(json_agg(unconfirmed ORDER BY created_at), '[]')
        FROM (
            SELECT r.id, a.order_id, r.state, r.amount_cents, upper(a.currency) AS currency, r.error, r.created_at
            FROM refunds r JOIN payment_attempts a ON a.id = r.attempt_id
            WHERE r.state IN ('owed', 'sent')
            ORDER BY r.created_at
            LIMIT 20
        ) AS unconfirmed
    )
) AS stats
