-- Selects which of the given payments can be deleted, and adds their money to that of the payments that were deleted before. The
-- provider's books must have the same money of them: a difference stays in the reports until an operator has found its reason.
-- The reports must have counted all movements. The age counts until the position of the books, for they do not know what happened
-- later. The reports count money that was refunded by hand as refunded, so this statement does, too.
--
-- $1 attempt ids; the payments and their refunds are locked · $2 age, in microseconds · $3 position of the books · $4 last report
WITH settled AS MATERIALIZED (
    SELECT a.id, a.currency, a.captured_cents, m.refunded
    FROM payment_attempts a
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(amount_cents) FILTER (WHERE state = 'confirmed'), 0) AS confirmed,
               coalesce(bool_or(state = 'settled_outside'), false) AS outside,
               coalesce(bool_or(state NOT IN ('confirmed', 'settled_outside') OR next_check IS NOT NULL), false) AS waits
        FROM refunds WHERE attempt_id = a.id
    ) AS r
    CROSS JOIN LATERAL (
        SELECT coalesce(sum(amount_cents) FILTER (WHERE kind = 'captured'), 0) AS captured,
               coalesce(sum(CASE kind WHEN 'refunded' THEN amount_cents WHEN 'refund_failed' THEN -amount_cents END), 0) AS refunded,
               coalesce(sum(CASE kind WHEN 'disputed' THEN amount_cents WHEN 'dispute_reversed' THEN -amount_cents END), 0) AS disputed,
               max(at) AS last, max(report) AS report, bool_and(currency = a.currency) AS same_currency
        FROM provider_movements WHERE attempt_id = a.id
    ) AS m
    WHERE a.id = ANY ($1::uuid[]) AND a.disputed_cents = 0 AND m.disputed = 0 AND NOT r.waits
      AND m.captured = a.captured_cents AND m.same_currency AND m.report <= $4
      AND m.last < least(now(), $3::timestamptz) - $2::bigint * interval '1 microsecond'
      AND (m.refunded = r.confirmed OR a.applied AND NOT r.outside AND m.refunded BETWEEN r.confirmed AND m.captured)
),
counted AS (
    INSERT INTO deleted_payments AS d (currency, payments, captured_cents, refunded_cents)
    SELECT currency, count(*), sum(captured_cents), sum(refunded) FROM settled GROUP BY currency ORDER BY currency
    ON CONFLICT (currency) DO UPDATE SET payments = d.payments + excluded.payments,
        captured_cents = d.captured_cents + excluded.captured_cents, refunded_cents = d.refunded_cents + excluded.refunded_cents
)
SELECT id FROM settled
