-- Opens an attempt to pay an order, holds the order, and owes the task that settles it. Returns the order's state,
-- the numbers of the attempts that it had before, and the new attempt, if there is one. It returns no row if the
-- customer has no such order.
--
-- It opens no attempt if the order is held already, cannot be paid any more, costs what the provider does not charge,
-- or has had too many. An attempt whose session came to its own end, because the deadline was later, does not count. If
-- another session opens one at the same time, the unique indexes reject the second. The limit of attempts that were
-- open is lower than the limit of all. An attempt that was never open counts only for the second, so an outage of the
-- provider uses up few attempts.
--
-- The provider's session must not expire while the order is held, even if its customer extends the deadline. Only the
-- length of this time comes from the database's clock. Its start is the present by the provider's clock, which decides
-- when the session expires.
--
-- $1 attempt id · $2 order id · $3 customer id · $4 grace in microseconds · $5 kind of the outbox row, '' for none
-- $6 maximum number of attempts of an order · $7 time in which the customer can pay at the checkout, even after the
-- deadline, in microseconds · $8 the present by the provider's clock
-- $9 time by which the customer can extend the deadline in all, in microseconds
-- $10 maximum number of its attempts that were open
-- $11 what the provider charges by currency: least, most, and of what each amount is a multiple; '' for others
-- $12 time until the first check at the latest, in microseconds. The relay publishes its task: it is never urgent.
WITH locked AS MATERIALIZED (
    SELECT * FROM orders WHERE id = $2::uuid AND customer_id = $3::uuid FOR UPDATE
),
clock AS MATERIALIZED (
    -- The clock is read after the lock is taken: a customer who waited for the lock past the deadline is too late.
    SELECT clock_timestamp() AS at FROM locked
),
decided AS MATERIALIZED (
    SELECT l.*, clock.at, times.checkout_until, times.grace,
           coalesce($11::jsonb -> l.currency, $11::jsonb -> '') AS charge,
           -- The provider accepts 30 minutes to 24 hours.
           least(greatest(greatest(l.expires_at + $9::bigint * interval '1 microsecond', times.checkout_until)
                          + times.grace + interval '5 min' - clock.at,
                          interval '31 min'), interval '23 h 55 min') AS session
    FROM locked l CROSS JOIN clock
    CROSS JOIN LATERAL (SELECT clock.at + $7::bigint * interval '1 microsecond' AS checkout_until,
                               $4::bigint * interval '1 microsecond' AS grace) AS times
),
before AS MATERIALIZED (
    SELECT coalesce(max(number), 0) AS last, count(*) FILTER (WHERE NOT lasted) AS count,
           count(*) FILTER (WHERE was_open AND NOT lasted) AS open
    FROM (SELECT number, was_open, state = 'closed' AND ended_at >= session_until AS lasted
          FROM payment_attempts WHERE order_id = $2::uuid) AS attempts
),
opened AS (
    INSERT INTO payment_attempts (id, order_id, number, amount_cents, currency, opened_at, checkout_until, next_check,
                                  session_until, session_expires_at)
    SELECT $1::uuid, d.id, before.last + 1, d.total_cents, lower(d.currency), d.at, d.checkout_until,
           least(d.at + $12::bigint * interval '1 microsecond', greatest(d.expires_at, d.checkout_until)),
           -- 5 minutes are for the calls and for errors of the clocks.
           d.at + d.session - interval '5 min', $8::timestamptz + d.session
    FROM decided d, before
    WHERE d.status = 'pending' AND d.at < d.expires_at AND d.hold_until IS NULL
      AND d.total_cents BETWEEN (d.charge ->> 'least')::bigint AND (d.charge ->> 'most')::bigint
      AND d.total_cents % (d.charge ->> 'multiple')::bigint = 0
      AND before.count < $6::bigint AND before.open < $10::bigint
    ON CONFLICT DO NOTHING
    RETURNING id, order_id, opened_at, next_check, session_expires_at
),
held AS (
    -- For expires_at see cancel_due.sql.
    UPDATE orders o SET hold_until = greatest(d.expires_at, d.checkout_until) + d.grace, expires_at = d.expires_at
    FROM decided d JOIN opened ON opened.order_id = d.id
    WHERE o.id = d.id
),
event AS (
    INSERT INTO order_events (order_id, type, actor, at)
    SELECT order_id, 'held', 'customer', opened_at FROM opened
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at)
    SELECT $5::text, order_id::text, next_check FROM opened WHERE $5::text <> ''
    ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
)
SELECT d.id, d.customer_id, d.status, d.cancel_reason, d.total_cents, d.currency, d.expires_at, d.hold_until,
       d.paid_at, d.cancelled_at, d.at AS server_time,
       opened.id AS attempt_id, opened.opened_at, opened.session_expires_at,
       before.count AS attempts, before.open AS open_attempts
FROM decided d CROSS JOIN before LEFT JOIN opened ON opened.order_id = d.id
