-- Returns what an operator asks about an order: its state by the database's clock, who ended it, and, if it is overdue,
-- which lock of another session prevents its cancellation. Without an id, returns the 20 orders that are overdue for
-- the longest time, but none that is overdue by less than a second: a healthy service is about to cancel it.
--
-- The xmax of a row is the transaction that locked or changed the row last. While that transaction runs, it has a lock
-- of its own number. If several sessions share the lock of a row, xmax is another number, and no session is found. A
-- transaction that is younger than a second is not reported, because placements lock their products for a moment.
--
-- $1 id, or NULL · $2 the kind of the task that cancels an order
SELECT o.id, $2::text AS kind, o.status, clock_timestamp() AS at, o.due_at, o.hold_until IS NOT NULL AS held,
       coalesce(o.paid_at, o.cancelled_at) AS ended_at, coalesce(o.ended_by, '') AS ended_by,
       coalesce(b.blocker, '') AS blocker
FROM orders o
LEFT JOIN LATERAL (
    SELECT format('%s is locked by the session %s of the database (%s)', r.name, l.pid, concat_ws(', ',
                  nullif(a.application_name, ''), a.state, 'in a transaction since ' || a.xact_start)) AS blocker
    FROM (
        SELECT 'the order' AS name, o.xmax AS locker
        UNION ALL
        SELECT 'the product ' || p.id, p.xmax
        FROM order_items i JOIN products p ON p.id = i.product_id WHERE i.order_id = o.id
    ) AS r
    JOIN pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = r.locker AND l.granted
    JOIN pg_stat_activity a ON a.pid = l.pid
    WHERE coalesce(a.xact_start, '-infinity') < clock_timestamp() - interval '1 second'
    ORDER BY a.xact_start LIMIT 1
) AS b ON o.status = 'pending' AND o.due_at <= clock_timestamp()
WHERE o.id IN (
    SELECT $1::uuid
    UNION ALL
    (SELECT id FROM orders WHERE $1::uuid IS NULL AND status = 'pending' AND due_at < now() - interval '1 second'
     ORDER BY due_at, id LIMIT 20)
)
ORDER BY o.due_at, o.id
