-- Opens an incident of the payments that match no attempt and were not found before, and stores that they are found.
-- What is unclaimed of a payment follows from its movements.
--
-- $1 incident id
WITH fresh AS (
    SELECT intent FROM provider_movements
    WHERE attempt_id IS NULL AND intent NOT IN (SELECT intent FROM unclaimed_payments)
    GROUP BY intent
    HAVING sum(net_cents) > 0
),
opened AS (
    INSERT INTO payment_incidents (id, kind, detail)
    SELECT $1::uuid, 'unclaimed', format('%s payments at the provider match no attempt, the first %s', count(*), min(intent))
    FROM fresh HAVING count(*) > 0
    ON CONFLICT (kind) WHERE closed_at IS NULL DO NOTHING
)
INSERT INTO unclaimed_payments (intent) SELECT intent FROM fresh
