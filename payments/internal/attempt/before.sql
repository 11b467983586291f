-- Returns the numbers of the attempts that an order has had: the last one's, how many count, and how many of these were
-- open. An attempt whose session came to its own end, because the deadline was later, does not count.
--
-- $1 order id
SELECT coalesce(max(number), 0), count(*) FILTER (WHERE NOT lasted), count(*) FILTER (WHERE was_open AND NOT lasted)
FROM (SELECT number, was_open, state = 'closed' AND ended_at >= closes_at AS lasted
      FROM payment_attempts WHERE order_id = $1) AS attempts
