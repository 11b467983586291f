-- Compares the provider's books with the tables. Returns the sums of both sides by currency, and what explains their
-- difference. All sums are of one snapshot. The statement reads every attempt and every movement. See
-- [CurrencyReport].
--
-- What is final on one side only is under way for an hour by the provider's clock, and then a difference. So is a
-- refund that waits. A refund by hand of a payment that paid its order counts as refunded here, too, because only the
-- books tell it.
--
-- $1 position of the books
WITH movement AS (
    SELECT m.currency, m.attempt_id, m.at, m.net_cents, u.kept_at IS NOT NULL AS kept,
           CASE m.kind WHEN 'captured' THEN m.amount_cents ELSE 0 END AS captured,
           CASE m.kind WHEN 'refunded' THEN m.amount_cents WHEN 'refund_failed' THEN -m.amount_cents ELSE 0 END AS refunded,
           CASE m.kind WHEN 'disputed' THEN m.amount_cents WHEN 'dispute_reversed' THEN -m.amount_cents ELSE 0 END AS disputed
    FROM provider_movements m LEFT JOIN unclaimed_payments u ON u.intent = m.intent AND m.attempt_id IS NULL
),
there AS (
    SELECT currency, sum(captured) AS captured, sum(refunded) AS refunded, sum(disputed) AS disputed,
           sum(net_cents) FILTER (WHERE attempt_id IS NULL) AS unclaimed, sum(net_cents) FILTER (WHERE kept) AS kept
    FROM movement GROUP BY currency
),
theirs AS (
    SELECT attempt_id, currency, sum(captured) AS captured, sum(refunded) AS refunded, sum(disputed) AS disputed,
           min(at) >= $1::timestamptz - interval '1 hour' AS recent
    FROM movement WHERE attempt_id IS NOT NULL GROUP BY attempt_id, currency
),
ours AS (
    SELECT a.id AS attempt_id, a.currency, a.state = 'succeeded' AS settled, a.applied, a.captured_cents AS captured,
           a.ended_at >= $1::timestamptz - interval '1 hour' AS recent, a.disputed_cents AS disputed,
           CASE WHEN r.state = 'confirmed' THEN r.amount_cents ELSE 0 END AS refunded,
           coalesce(r.state IN ('owed', 'sent', 'failed'), false) AS refund_waits,
           coalesce(r.state = 'confirmed' AND r.ended_at >= $1::timestamptz - interval '1 hour', false) AS refund_recent
    FROM payment_attempts a LEFT JOIN refunds r ON r.attempt_id = a.id
),
compared AS (
    SELECT coalesce(t.attempt_id, o.attempt_id) AS attempt_id, coalesce(t.currency, o.currency) AS currency,
           coalesce(o.applied, false) AS applied, v.what, v.there, v.here, v.sign * (v.there - v.here) AS cents,
           coalesce(v.under_way, false) AS under_way
    FROM theirs t FULL JOIN ours o ON o.attempt_id = t.attempt_id AND o.currency = t.currency
    CROSS JOIN LATERAL (VALUES
        ('captured', 1, coalesce(t.captured, 0), coalesce(o.captured, 0),
         CASE WHEN o.settled THEN o.recent AND coalesce(t.captured, 0) = 0 WHEN NOT o.settled THEN t.recent END),
        ('refunded', -1, coalesce(t.refunded, 0),
         CASE WHEN o.applied THEN greatest(t.refunded, 0) ELSE coalesce(o.refunded, 0) END,
         CASE WHEN NOT o.settled THEN t.recent WHEN t.refunded > o.refunded THEN o.refund_waits ELSE o.refund_recent END),
        ('disputed', -1, coalesce(t.disputed, 0), coalesce(o.disputed, 0), false)
    ) AS v (what, sign, there, here, under_way)
    WHERE t.attempt_id IS NOT NULL OR o.captured > 0
),
here AS (
    SELECT currency, sum(here) FILTER (WHERE what = 'captured') AS captured, sum(here) FILTER (WHERE what = 'refunded') AS refunded,
           sum(here) FILTER (WHERE what = 'disputed') AS disputed,
           sum(here) FILTER (WHERE what = 'refunded' AND applied) AS by_hand,
           sum(cents) FILTER (WHERE under_way) AS under_way, sum(cents) FILTER (WHERE NOT under_way) AS difference,
           count(*) FILTER (WHERE NOT under_way AND cents <> 0) AS difference_count,
           to_json((array_agg(json_build_object('attempt_id', attempt_id, 'what', what, 'there_cents', there, 'here_cents', here)
               ORDER BY attempt_id, what) FILTER (WHERE NOT under_way AND cents <> 0))[1:100]) AS differences
    FROM compared GROUP BY currency
)
SELECT currency, coalesce(t.captured, 0) AS there_captured_cents, coalesce(t.refunded, 0) AS there_refunded_cents,
       coalesce(t.disputed, 0) AS there_disputed_cents, coalesce(h.captured, 0) AS here_captured_cents,
       coalesce(h.refunded, 0) AS here_refunded_cents, coalesce(h.disputed, 0) AS here_disputed_cents,
       coalesce(t.unclaimed, 0) AS unclaimed_cents, coalesce(t.kept, 0) AS kept_cents, coalesce(h.under_way, 0) AS under_way_cents,
       coalesce(h.by_hand, 0) AS by_hand_cents, coalesce(h.difference, 0) AS difference_cents,
       coalesce(h.difference_count, 0) AS difference_count, coalesce(h.differences, '[]') AS differences
FROM there t FULL JOIN here h USING (currency)
ORDER BY currency
