-- Lists money that the provider has captured for this deployment, and that matches no attempt, by payment. New payments
-- open an incident. A payment that was returned at the provider, or whose attempt is known again, is not unclaimed any more.
-- One that was refunded is open again if the provider has its money back, for example because the refund failed.
--
-- $1 incident id
WITH net AS (
    SELECT intent, sum(net_cents) AS cents
    FROM provider_movements
    WHERE attempt_id IS NULL
    GROUP BY intent
),
returned AS (
    UPDATE unclaimed_payments u
    SET state = 'refunded', ended_at = clock_timestamp(), note = coalesce(u.note, 'returned in the provider''s books'), actor = coalesce(u.actor, 'provider')
    FROM net n
    WHERE n.intent = u.intent AND n.cents <= 0 AND u.state IN ('open', 'refunding')
),
back AS (
    -- Until the books have the refund that the shop has sent, they still have the money.
    UPDATE unclaimed_payments u
    SET state = 'open', amount_cents = NULL, provider_id = NULL, try = try + 1, note = NULL, actor = NULL, ended_at = NULL
    FROM net n
    WHERE n.intent = u.intent AND n.cents > 0 AND u.state = 'refunded' AND (u.provider_id IS NULL
      OR EXISTS (SELECT FROM provider_movements m WHERE m.intent = u.intent AND m.kind = 'refunded' AND m.source_id = u.provider_id))
),
known AS (
    DELETE FROM unclaimed_payments u WHERE u.state = 'open' AND NOT EXISTS (SELECT FROM net n WHERE n.intent = u.intent)
),
fresh AS (
    SELECT n.intent FROM net n WHERE n.cents > 0 AND NOT EXISTS (SELECT FROM unclaimed_payments u WHERE u.intent = n.intent)
),
opened AS (
    INSERT INTO payment_incidents (id, kind, detail)
    SELECT $1::uuid, 'unclaimed', format('%s payments at the provider match no attempt, the first %s', count(*), min(intent)) FROM fresh HAVING count(*) > 0
    ON CONFLICT (kind) WHERE closed_at IS NULL DO UPDATE SET detail = payment_incidents.detail
    RETURNING id
),
listed AS (
    INSERT INTO unclaimed_payments (intent, incident_id) SELECT f.intent, o.id FROM fresh f CROSS JOIN opened o
)
SELECT count(*) AS added FROM fresh
