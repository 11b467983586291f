-- Stores what the provider's books decide alone: disputed amounts, and the attempts of movements. The provider is
-- asked about the rest: a payment that is not known here, and a refund that has ended otherwise. The statement may be
-- repeated: what it stores is computed from all movements.
--
-- $1 kind of the task that checks an attempt · $2 kind of the task that checks a refund
WITH found AS (
    -- After a restore, or an event that came late, the attempt of an unclaimed movement may be known.
    SELECT m.id, a.id AS attempt_id
    FROM provider_movements m JOIN payment_attempts a ON a.payment_intent = m.intent OR a.id = (
        SELECT c.meta_attempt FROM provider_movements c WHERE c.intent = m.intent AND c.meta_attempt IS NOT NULL LIMIT 1) AND a.session_id IS NOT NULL
    WHERE m.attempt_id IS NULL
),
matched AS (
    UPDATE provider_movements m SET attempt_id = f.attempt_id FROM found f WHERE f.id = m.id
),
movement AS (
    SELECT m.kind, m.amount_cents, m.source_id, coalesce(m.attempt_id, f.attempt_id) AS attempt_id
    FROM provider_movements m LEFT JOIN found f ON f.id = m.id
),
net AS (
    SELECT attempt_id, bool_or(kind = 'captured') AS captured,
           coalesce(sum(CASE kind WHEN 'disputed' THEN amount_cents WHEN 'dispute_reversed' THEN -amount_cents END), 0) AS disputed,
           coalesce(sum(CASE kind WHEN 'refunded' THEN amount_cents WHEN 'refund_failed' THEN -amount_cents END), 0) AS refunded
    FROM movement
    WHERE attempt_id IS NOT NULL
    GROUP BY attempt_id
),
attempt AS (
    UPDATE payment_attempts a
    SET disputed_cents = greatest(n.disputed, 0),
        next_check = CASE WHEN n.captured AND a.state <> 'succeeded' AND a.session_id IS NOT NULL THEN clock_timestamp() ELSE a.next_check END
    FROM net n
    WHERE a.id = n.attempt_id
      AND (a.disputed_cents <> greatest(n.disputed, 0) OR (n.captured AND a.state <> 'succeeded' AND a.session_id IS NOT NULL))
    RETURNING a.id, a.next_check, a.state
),
returned AS (
    SELECT m.attempt_id
    FROM movement m LEFT JOIN movement f ON f.kind = 'refund_failed' AND f.source_id = m.source_id
    WHERE m.kind = 'refunded' AND f.source_id IS NULL
),
other_refunds AS (
    -- The refund failed at the provider, or money was returned for a refund that waits. These are joins, not an
    -- EXISTS for each refund, which would read all movements each time.
    SELECT r.id FROM refunds r JOIN movement m ON m.kind = 'refund_failed' AND m.source_id = r.provider_id
    WHERE r.state IN ('sent', 'confirmed')
    UNION
    SELECT r.id FROM refunds r JOIN returned m ON m.attempt_id = r.attempt_id
    WHERE r.state IN ('owed', 'failed')
),
refund AS (
    UPDATE refunds r SET next_check = clock_timestamp()
    WHERE r.id IN (SELECT id FROM other_refunds) AND r.state <> 'settled_outside' -- meanwhile
    RETURNING r.id, r.next_check
)
INSERT INTO outbox (kind, task_id, due_at)
SELECT $1::text, id::text, next_check FROM attempt WHERE state <> 'succeeded' AND next_check IS NOT NULL
UNION ALL
SELECT $2::text, id::text, next_check FROM refund
ORDER BY 1, 2
ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
