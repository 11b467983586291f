-- Stores movements of the provider's books that are, or may be, this deployment's, and moves the position. The caller
-- holds the lock of payment_books.
--
-- A movement is matched by the payment intent, then by the attempt that the provider's object names. A refund and a
-- dispute name no attempt: they are this deployment's if their payment, or the refund, is. An attempt without a
-- session matches no movement, because nobody could ask the provider for it. It can have been paid if the database
-- was restored.
--
-- $1 JSON array of movements · $2 new position
WITH read AS MATERIALIZED (
    SELECT m.*, a.id AS attempt_id
    FROM json_to_recordset($1::json) AS m (id text, kind text, at timestamptz, amount_cents bigint, currency text, source_id text,
        intent text, refund_id uuid, meta_order uuid, meta_attempt uuid, ours boolean)
    LEFT JOIN LATERAL (
        SELECT id FROM payment_attempts WHERE payment_intent = m.intent
        UNION ALL
        SELECT id FROM payment_attempts WHERE id = m.meta_attempt AND m.ours AND session_id IS NOT NULL
        LIMIT 1
    ) AS a ON true
),
own AS MATERIALIZED (
    SELECT * FROM read r
    WHERE r.ours OR r.attempt_id IS NOT NULL
       OR EXISTS (SELECT FROM read o WHERE o.intent = r.intent AND (o.ours OR o.attempt_id IS NOT NULL))
       OR EXISTS (SELECT FROM provider_movements k WHERE k.intent = r.intent)
       OR EXISTS (SELECT FROM refunds WHERE id = r.refund_id)
),
stored AS (
    INSERT INTO provider_movements (id, kind, at, amount_cents, currency, source_id, intent, refund_id, meta_order, meta_attempt, attempt_id)
    SELECT o.id, o.kind, o.at, o.amount_cents, o.currency, o.source_id, o.intent, o.refund_id, o.meta_order, o.meta_attempt, o.attempt_id
    FROM own o
    ORDER BY o.id
    ON CONFLICT (id) DO NOTHING
)
UPDATE payment_books SET position = greatest(position, $2::timestamptz)
