-- Stores the id of an event about a refund, a charge or a dispute of a payment, and makes refunds of the payment due
-- for a check now: the refund that the event names, or all of them. Returns the outcome of the event, '' for a
-- repeated one, and the refunds, in one row each. A refund that has ended is checked too: one that the provider has
-- confirmed can still fail at the customer's bank, and an operator can return the money of one that failed. Nothing
-- changes a refund that was settled outside. payment_books is left alone: a report locks it before the refunds.
--
-- $1 event id · $2 event type · $3 payment intent · $4 kind of the outbox rows · $5 refund id or NULL
-- $6 true: the event names this deployment · $7 what the event is about: refund, charge or dispute
WITH event AS (
    INSERT INTO provider_events (id, type, outcome, books_from)
    SELECT $1::text, $2::text, CASE WHEN a.id IS NOT NULL THEN 'matched' WHEN $6::boolean THEN 'unmatched' ELSE 'foreign' END,
        -- A dispute, and a refund that the shop has not made, are read from the provider's books, which a report reads
        -- until a minute ago. An event about a charge does not name the refund; a refund by hand has another event
        -- that does.
        CASE WHEN a.id IS NOT NULL AND CASE $7::text
            WHEN 'dispute' THEN true
            WHEN 'refund'  THEN $5::uuid IS NULL
            ELSE NOT EXISTS (SELECT FROM refunds WHERE attempt_id = a.id) END
        THEN clock_timestamp() + interval '90 s' END
    FROM (VALUES (true)) AS always LEFT JOIN payment_attempts a ON a.payment_intent = $3::text
    ON CONFLICT DO NOTHING
    RETURNING id, received_at, outcome
),
checked AS (
    UPDATE refunds r SET next_check = e.received_at
    FROM event e, payment_attempts a
    WHERE a.payment_intent = $3::text AND r.attempt_id = a.id AND r.state <> 'settled_outside'
      AND $7::text <> 'dispute' AND ($5::uuid IS NULL OR r.id = $5::uuid)
    RETURNING r.id, r.next_check
),
owed AS (
    INSERT INTO outbox (kind, task_id, due_at)
    SELECT $4::text, id::text, next_check FROM checked ORDER BY id
    ON CONFLICT (kind, task_id) DO UPDATE SET due_at = least(outbox.due_at, excluded.due_at)
)
SELECT coalesce(e.outcome, '') AS outcome, coalesce(c.id::text, '') AS task, c.next_check AS due_at,
       clock_timestamp() AS server_time
FROM (VALUES (true)) AS always LEFT JOIN event e ON true LEFT JOIN checked c ON true
