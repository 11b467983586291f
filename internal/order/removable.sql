-- Returns the ids of up to 500 booked orders that ended long ago, which the remover locks. An id begins with the time
-- at which the order was placed, so the primary key finds old orders: an order that ended before a time was placed
-- before that time, too. The statement adds an hour, because the clock of the process that made the id may be ahead. A
-- clock that is further ahead delays the removal.
--
-- $1 id of the last order of the batch before, the nil UUID for the first batch · $2 µs for which ended orders are kept
SELECT id FROM orders
WHERE booked AND id > $1::uuid
  AND id < (lpad(to_hex((extract(epoch FROM now() - $2::bigint * interval '1 microsecond' + interval '1 hour') * 1000)::bigint), 12, '0') || repeat('f', 20))::uuid
  AND coalesce(paid_at, cancelled_at) < now() - $2::bigint * interval '1 microsecond'
ORDER BY id
LIMIT 500
