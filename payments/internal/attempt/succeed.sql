-- Stores that the customer has paid an attempt. If the order is pending, held and before the end of its hold, and the
-- amount is right, the success pays the order. Else the statement owes a refund of the whole, and releases the order if
-- this attempt holds it. Returns what it decided, or no row if the success is stored already.
--
-- The refund of a closed attempt that succeeds while its order is still pending is stored as late, as far as the shop
-- knows then. If another attempt pays the order afterwards, the customer has paid twice: what reads the reason sees
-- that.
--
-- $1 attempt id · $2 session id · $3 payment intent · $4 captured amount · $5 its currency in lower case · $6 refund id
-- $7 kind of the cancel task · $8 kind of the refund task; '': no outbox row · $9 actor of the event that releases the
-- order · $10 kind of the settle task
WITH locked AS MATERIALIZED (
    SELECT * FROM orders WHERE id = (SELECT order_id FROM payment_attempts WHERE id = $1::uuid) FOR UPDATE
),
attempt AS MATERIALIZED (
    -- The latest version, locked after the order.
    SELECT a.id, a.state, a.amount_cents, a.currency
    FROM payment_attempts a JOIN locked l ON l.id = a.order_id
    WHERE a.id = $1::uuid AND a.state <> 'succeeded'
    FOR UPDATE OF a
),
decided AS MATERIALIZED (
    SELECT d.*, CASE
        WHEN d.amount_cents <> $4::bigint OR d.attempt_currency <> $5::text             THEN 'mismatch'
        WHEN d.status = 'paid'                                                          THEN 'duplicate'
        WHEN d.status = 'pending' AND d.live AND d.hold_until IS NOT NULL AND d.at < d.hold_until THEN NULL
        ELSE 'late'
    END AS refund_reason
    FROM (
        SELECT l.*, a.id AS attempt_id, a.amount_cents, a.currency AS attempt_currency,
               a.state IN ('creating', 'open') AS live, clock_timestamp() AS at
        FROM locked l CROSS JOIN attempt a
    ) AS d
),
succeeded AS (
    UPDATE payment_attempts a
    SET state = 'succeeded', applied = d.refund_reason IS NULL, session_id = $2::text, payment_intent = $3::text,
        captured_cents = $4::bigint, checkout_url = NULL, ended_at = d.at, next_check = NULL
    FROM decided d
    WHERE a.id = d.attempt_id
),
changed AS (
    -- Pays the order, or releases it.
    UPDATE orders o
    SET status = CASE WHEN d.refund_reason IS NULL THEN 'paid' ELSE d.status END,
        paid_at = CASE WHEN d.refund_reason IS NULL THEN d.at END,
        ended_by = CASE WHEN d.refund_reason IS NULL THEN 'provider' END,
        hold_until = CASE WHEN d.refund_reason IS NULL THEN d.hold_until END,
        expires_at = d.expires_at
    FROM decided d
    WHERE o.id = d.id AND d.status = 'pending' AND (d.refund_reason IS NULL OR d.live)
    RETURNING o.id, o.due_at
),
event AS (
    INSERT INTO order_events (order_id, type, actor, at)
    SELECT d.id, 'released', $9::text, d.at FROM changed c JOIN decided d ON d.id = c.id WHERE d.refund_reason IS NOT NULL
),
refund AS (
    INSERT INTO refunds (id, attempt_id, reason, amount_cents, created_at, next_check)
    SELECT $6::uuid, attempt_id, refund_reason, $4::bigint, at, at FROM decided WHERE refund_reason IS NOT NULL
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at)
    SELECT $8::text, $6::uuid::text, at FROM decided WHERE refund_reason IS NOT NULL AND $8::text <> ''
    UNION ALL
    SELECT $7::text, d.id::text, c.due_at FROM changed c JOIN decided d ON d.id = c.id WHERE d.refund_reason IS NOT NULL AND $7::text <> ''
    ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
),
done AS (
    -- The check that hear.sql owes is made. If the relay has the row, the task will find nothing to do.
    DELETE FROM outbox WHERE (kind, task_id) IN (
        SELECT x.kind, x.task_id FROM outbox x JOIN decided c ON x.task_id = c.id::text
        WHERE x.kind = $10::text AND NOT EXISTS (
            SELECT FROM payment_attempts WHERE order_id = c.id AND id <> $1::uuid AND next_check IS NOT NULL)
        FOR UPDATE OF x SKIP LOCKED)
)
SELECT d.id AS order_id, d.customer_id, coalesce(d.refund_reason, '') AS refund_reason, d.at AS refund_due_at,
       CASE WHEN d.refund_reason IS NOT NULL THEN c.due_at END AS cancel_due_at, clock_timestamp() AS server_time
FROM decided d LEFT JOIN changed c ON c.id = d.id
