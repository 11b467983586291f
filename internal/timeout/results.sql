
-- Follows a WITH clause that has timed out the due rows of the batch $1 and returns them as ended. It returns a result
-- for each id of the batch. NOT IN uses a hash table. A join with ended can become a nested loop that compares each id
-- of the batch with each ended row, because the planner expects few rows to be due. late_us and left_us are in
-- microseconds: how late the row was timed out, and the time left until it is due.
SELECT e.id, e.owner, 'timed_out' AS state, e.reason,
       (extract(epoch FROM e.ended_at - e.due_at) * 1000000)::bigint AS late_us, 0::bigint AS left_us
-- owner and reason are columns of ended, or those of absent if ended has none.
FROM (SELECT NULL AS owner, NULL AS reason) AS absent
CROSS JOIN LATERAL (SELECT id, due_at, ended_at, owner, reason FROM ended) AS e
UNION ALL
SELECT batch.id, NULL,
       -- the other states of a RowState
       CASE
           WHEN r.id IS NULL          THEN 'gone'
           WHEN r.status <> 'pending' THEN 'already_ended'
           WHEN r.{due} > now()       THEN 'not_due'
           ELSE 'locked' -- or it has ended since the statement began: a retry then finds that
       END,
       NULL, 0, coalesce(extract(epoch FROM r.{due} - clock_timestamp()) * 1000000, 0)::bigint
FROM unnest($1::uuid[]) AS batch (id)
LEFT JOIN {table} AS r ON r.id = batch.id
WHERE batch.id NOT IN (SELECT id FROM ended)
