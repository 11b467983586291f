-- Returns the ids of up to 500 booked orders that ended long ago, which the remover locks. An id begins with the time
-- of its order, so the primary key finds old orders. An order is placed before it ends, so its id is below an id of the
-- latest end that counts, plus an hour for the clocks of the processes that make ids. A clock that is further ahead
-- delays the removal.
--
-- $1 id of the last order of the batch before, the nil UUID for the first batch · $2 µs for which ended orders are kept
SELECT id FROM orders
WHERE booked AND id > $1::uuid
  AND id < (lpad(to_hex((extract(epoch FROM now() - $2::bigint * interval '1 microsecond' + interval '1 hour') * 1000)::bigint), 12, '0') || repeat('f', 20))::uuid
  AND coalesce(paid_at, cancelled_at) < now() - $2::bigint * interval '1 microsecond'
ORDER BY id
LIMIT 500
