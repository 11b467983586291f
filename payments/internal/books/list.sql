-- Returns the answer of GET /ops/api/books as one JSON object: the last report, the open incidents, and the payments
-- that were ever unclaimed, those that wait for an operator first.
SELECT json_build_object(
    'report', (
        SELECT report || jsonb_build_object('number', number, 'made_at', made_at)
        FROM payment_reports ORDER BY number DESC LIMIT 1
    ),
    'incidents', (
        SELECT coalesce(json_agg(json_build_object('id', id, 'kind', kind, 'detail', detail, 'opened_at', opened_at) ORDER BY opened_at), '[]')
        FROM payment_incidents WHERE closed_at IS NULL
    ),
    'unclaimed', (
        SELECT coalesce(json_agg(u ORDER BY u.state <> 'open', u.seen_at DESC), '[]')
        FROM (
            SELECT u.intent, CASE WHEN u.kept_at IS NOT NULL THEN 'kept' WHEN m.cents > 0 THEN 'open' ELSE 'returned' END AS state,
                   m.cents AS amount_cents, m.currency, m.meta_order AS order_id, m.meta_attempt AS attempt_id, m.at AS paid_at,
                   u.seen_at, u.note, u.actor, u.kept_at
            FROM unclaimed_payments u JOIN (
                SELECT intent, upper(min(currency)) AS currency, (array_agg(meta_order) FILTER (WHERE meta_order IS NOT NULL))[1] AS meta_order,
                       (array_agg(meta_attempt) FILTER (WHERE meta_attempt IS NOT NULL))[1] AS meta_attempt, min(at) AS at,
                       sum(net_cents)::bigint AS cents
                FROM provider_movements WHERE attempt_id IS NULL GROUP BY intent
            ) AS m USING (intent)
            ORDER BY u.kept_at IS NULL AND m.cents > 0 DESC, u.seen_at DESC
            LIMIT 200
        ) AS u
    )
) AS books
