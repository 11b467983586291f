-- Owes a refund of a part of a payment that paid its order, or of all of it. It owes none if the payment is disputed or
-- in another currency, if less is left of it than the amount, or if it has a refund with this key. refund_lock.sql has
-- locked the payment. Returns what is left of the payment and what is disputed, and the refund with this key, if there is
-- one.
--
-- Every refund counts, also one that failed: a retry sends it again. So does what the provider has returned without a refund
-- of the shop, for example in its dashboard, as soon as its books are read.
--
-- $1 refund id · $2 attempt id · $3 amount · $4 key · $5 actor · $6 note · $7 kind of the outbox row, '' for none
-- $8 currency of the amount, '' for that of the payment
WITH payment AS MATERIALIZED (
    SELECT a.id, a.order_id, a.currency, a.disputed_cents,
           greatest(0, a.captured_cents - a.disputed_cents
               - coalesce((SELECT sum(amount_cents) FROM refunds WHERE attempt_id = a.id), 0)
               - coalesce((
                   SELECT sum(CASE m.kind WHEN 'refunded' THEN m.amount_cents WHEN 'refund_failed' THEN -m.amount_cents END)
                   FROM provider_movements m
                   WHERE m.intent = a.payment_intent AND NOT EXISTS (SELECT FROM refunds r WHERE r.id = m.refund_id)
               ), 0)) AS left_cents
    FROM payment_attempts a
    WHERE a.id = $2::uuid
),
stored AS MATERIALIZED (
    SELECT id, state, amount_cents, actor, note, created_at, ended_at, next_check FROM refunds WHERE attempt_id = $2::uuid AND request_key = $4::text
),
requested AS (
    INSERT INTO refunds (id, attempt_id, reason, amount_cents, request_key, actor, note, created_at, next_check)
    SELECT $1::uuid, id, 'requested', $3::bigint, $4::text, $5::text, $6::text, clock_timestamp(), clock_timestamp()
    FROM payment
    WHERE disputed_cents = 0 AND $3::bigint <= left_cents AND $8::text IN ('', upper(currency))
        AND NOT EXISTS (SELECT FROM stored)
    RETURNING id, state, amount_cents, actor, note, created_at, ended_at, next_check
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at)
    SELECT $7::text, id::text, next_check FROM requested WHERE $7::text <> ''
    ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
)
SELECT p.disputed_cents, p.left_cents, upper(p.currency) AS currency, p.order_id, o.customer_id,
       r.id, r.state, r.amount_cents, r.actor, r.note, r.created_at, r.ended_at, r.next_check AS due_at, clock_timestamp() AS server_time
FROM payment p JOIN orders o ON o.id = p.order_id
LEFT JOIN (SELECT * FROM stored UNION ALL SELECT * FROM requested) r ON true
