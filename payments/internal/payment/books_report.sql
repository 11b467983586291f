-- Returns, by currency, the sums of the provider's books and of the tables, and takes their difference apart. All sums are
-- of one snapshot. It reads every attempt. See [Report].
--
-- $1 number of the report · $2 position of the books
WITH movement AS (
    SELECT currency, attempt_id, intent, report, at,
           CASE kind WHEN 'captured' THEN amount_cents ELSE 0 END AS captured,
           CASE kind WHEN 'refunded' THEN amount_cents WHEN 'refund_failed' THEN -amount_cents ELSE 0 END AS refunded,
           CASE kind WHEN 'disputed' THEN amount_cents WHEN 'dispute_reversed' THEN -amount_cents ELSE 0 END AS disputed
    FROM provider_movements
),
there AS (
    SELECT currency, sum(captured) AS captured, sum(refunded) AS refunded, sum(disputed) AS disputed
    FROM movement WHERE report = $1::bigint GROUP BY currency
),
unclaimed AS (
    SELECT m.currency, sum(m.captured - m.refunded - m.disputed) AS cents,
           coalesce(sum(m.captured - m.refunded - m.disputed) FILTER (WHERE u.kept_at IS NOT NULL), 0) AS kept
    FROM movement m LEFT JOIN unclaimed_payments u ON u.intent = m.intent
    WHERE m.attempt_id IS NULL
    GROUP BY m.currency
),
theirs AS (
    SELECT attempt_id, currency, sum(captured) AS captured, sum(refunded) AS refunded, sum(disputed) AS disputed, min(at) AS since
    FROM movement WHERE attempt_id IS NOT NULL GROUP BY attempt_id, currency
),
ours AS (
    SELECT a.id AS attempt_id, a.currency, a.state, a.applied, a.ended_at, a.captured_cents AS captured, a.disputed_cents AS disputed,
           CASE WHEN r.state = 'confirmed' THEN r.amount_cents ELSE 0 END AS confirmed,
           CASE WHEN r.state IN ('owed', 'sent', 'failed') THEN r.amount_cents ELSE 0 END AS waiting,
           CASE WHEN r.state = 'settled_outside' THEN r.amount_cents ELSE 0 END AS outside,
           CASE WHEN r.state = 'confirmed' THEN r.ended_at END AS confirmed_at
    FROM payment_attempts a LEFT JOIN refunds r ON r.attempt_id = a.id
),
both_sides AS (
    SELECT coalesce(t.currency, o.currency) AS currency, coalesce(t.attempt_id, o.attempt_id) AS attempt_id, o.state, coalesce(o.applied, false) AS applied,
           o.ended_at, o.confirmed_at, t.since, coalesce(o.captured, 0) AS captured, coalesce(o.confirmed, 0) AS confirmed,
           coalesce(o.disputed, 0) AS disputed, coalesce(o.waiting, 0) AS waiting,
           coalesce(o.outside, 0) AS outside,
           coalesce(t.captured, 0) AS t_captured,
           coalesce(t.captured, 0) - coalesce(o.captured, 0) AS more_captured,
           coalesce(t.refunded, 0) - coalesce(o.confirmed, 0) AS more_refunded,
           coalesce(t.disputed, 0) - coalesce(o.disputed, 0) AS more_disputed
    FROM theirs t FULL JOIN ours o ON o.attempt_id = t.attempt_id AND o.currency = t.currency
    WHERE t.attempt_id IS NOT NULL OR o.captured > 0
),
captures AS (
    SELECT *,
           -- Known there and not final here yet, or final here and younger than what the books were read for.
           CASE WHEN more_captured > 0 AND state <> 'succeeded' THEN more_captured
                WHEN more_captured < 0 AND t_captured = 0 AND ended_at >= $2::timestamptz - interval '1 hour' THEN more_captured ELSE 0
           END AS capture_way,
           CASE WHEN more_captured < 0 AND t_captured = 0 AND ended_at < $2::timestamptz - interval '1 hour' THEN -more_captured ELSE 0 END AS capture_missing,
           CASE WHEN state <> 'succeeded' THEN more_refunded
                WHEN more_refunded > 0 THEN least(more_refunded, waiting)
                WHEN more_refunded < 0 AND confirmed_at >= $2::timestamptz - interval '1 hour' THEN more_refunded ELSE 0
           END AS refund_way,
           CASE WHEN more_refunded < 0 AND confirmed_at < $2::timestamptz - interval '1 hour' THEN -more_refunded ELSE 0 END AS refund_missing
    FROM both_sides
),
refunds_taken AS (
    SELECT *, least(greatest(more_refunded - refund_way, 0), outside) AS twice FROM captures
),
compared AS (
    SELECT *, CASE WHEN applied THEN greatest(more_refunded - refund_way, 0) - twice ELSE 0 END AS by_hand FROM refunds_taken
),
sums AS (
    SELECT currency, sum(captured) AS captured, sum(confirmed + by_hand) AS refunded, sum(disputed) AS disputed,
           sum(capture_way - refund_way) AS under_way, sum(capture_missing) AS missing, sum(refund_missing) AS missing_refunds, sum(twice) AS twice, sum(by_hand) AS by_hand,
           sum((more_captured - capture_way + capture_missing) - (more_refunded - refund_way + refund_missing - twice - by_hand) - more_disputed) AS other
    FROM compared GROUP BY currency
),
differences AS (
    SELECT c.attempt_id, c.currency, d.what, d.cents
    FROM compared c CROSS JOIN LATERAL (VALUES
        ('missing there: captured', capture_missing), ('missing there: refunded', refund_missing), ('returned twice', twice),
        ('not settled here', CASE WHEN more_captured > 0 AND since < $2::timestamptz - interval '1 hour' THEN capture_way ELSE 0 END),
        ('another amount captured', more_captured - capture_way + capture_missing),
        ('another amount refunded', more_refunded - refund_way + refund_missing - twice - by_hand),
        ('another amount disputed', more_disputed)) AS d (what, cents)
    WHERE d.cents <> 0
)
SELECT c.currency, coalesce(t.captured, 0) AS there_captured, coalesce(t.refunded, 0) AS there_refunded, coalesce(t.disputed, 0) AS there_disputed,
       coalesce(s.captured, 0) AS here_captured, coalesce(s.refunded, 0) AS here_refunded, coalesce(s.disputed, 0) AS here_disputed,
       coalesce(u.cents, 0) AS unclaimed, coalesce(u.kept, 0) AS kept, coalesce(s.under_way, 0) AS under_way,
       coalesce(s.missing, 0) AS missing, coalesce(s.missing_refunds, 0) AS missing_refunds, coalesce(s.twice, 0) AS twice,
       coalesce(s.by_hand, 0) AS by_hand, coalesce(s.other, 0) AS other,
       (SELECT count(*) FROM differences d WHERE d.currency = c.currency) AS count,
       (SELECT coalesce(json_agg(json_build_object('attempt_id', d.attempt_id, 'what', d.what, 'cents', d.cents)), '[]')
        FROM (SELECT * FROM differences d WHERE d.currency = c.currency ORDER BY attempt_id, what LIMIT 100) AS d)::text AS differences
FROM (SELECT DISTINCT currency FROM movement UNION SELECT currency FROM sums) AS c
LEFT JOIN there t USING (currency) LEFT JOIN unclaimed u USING (currency) LEFT JOIN sums s USING (currency)
ORDER BY c.currency
