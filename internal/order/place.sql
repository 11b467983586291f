-- Places a batch of orders, whose products and customers lock.sql has locked in this transaction before. For each order
-- that it accepts it reserves the stock, and writes the order, its items, and the outbox row of the task that cancels
-- it at its deadline. It returns one row for each placement.
--
-- It accepts a placement if all products exist and have one currency, and if the stock and the bounds of the customer
-- suffice for it and for all earlier placements of the batch, even those that are not accepted. So the statement may
-- leave out a placement for which enough is left. The caller then repeats the transaction with this placement.
--
-- A pending order is open until its due time. An overdue order does not count towards the bounds, because its customer
-- can neither pay nor cancel it. This condition is a FILTER, because the index of the due times must not be used for
-- it: that index has the pending orders of all customers.
--
-- The planner knows nothing about the size of a batch, and joins the arrays of a batch in a way that is slow for large
-- batches. So there are few such joins: window functions carry what concerns a whole placement to each of its lines.
--
-- The arrays with one element for each placement:
--   @ids of the orders · @customers · @nth: the number among the customer's placements of the batch, from 1
--   @keys: idempotency keys, or NULL · @fingerprints, or NULL without a key · @spans, or NULL if not traced
-- The arrays with one element for each line of each placement:
--   @line_placements: the number of the placement, from 1 · @line_products · @line_quantities
--   @line_earlier: units of the product in all earlier placements of the batch
--   @line_own_earlier: units of the product in the earlier placements of the same customer
-- @time_to_pay in microseconds · @kind of the outbox rows
-- @max_open_orders of a customer · @max_open_units of a product in them (NULL: no bound)
-- @charges: what can be charged by currency: least, most, and of what each total is a multiple; '' for others (NULL: any)
WITH clock AS MATERIALIZED (
    -- All parts of the statement use this time, so that they agree which orders are open. It is read after the locks
    -- are taken, so that the wait for them does not shorten the time to pay. Only server_time is read later.
    SELECT clock_timestamp() AS at
),
wanted AS MATERIALIZED (
    SELECT w.*, clock.at,
           coalesce((SELECT o.id FROM orders o WHERE o.id = w.id), -- by a transaction whose connection was lost
                    CASE WHEN w.idempotency_key IS NOT NULL THEN (
                        SELECT o.id FROM orders o
                        WHERE o.customer_id = w.customer_id AND o.idempotency_key = w.idempotency_key
                    ) END) AS existing_id,
           CASE WHEN coalesce(@max_open_orders::bigint, @max_open_units::bigint) IS NOT NULL
                THEN (SELECT count(*) FILTER (WHERE o.due_at > clock.at)
                      FROM orders o WHERE o.customer_id = w.customer_id AND o.status = 'pending')
           END AS open_orders
    FROM unnest(@ids::uuid[], @customers::uuid[], @nth::bigint[], @keys::text[], @fingerprints::bytea[], @spans::bytea[])
         WITH ORDINALITY AS w (id, customer_id, nth, idempotency_key, fingerprint, span, n)
    CROSS JOIN clock
),
decided AS MATERIALIZED (
    SELECT w.*, l.product_id, l.quantity, p.name, p.price_cents, p.currency,
           sum(p.price_cents * l.quantity) OVER placement AS total_cents,
           row_number() OVER placement = 1 AS is_first,
           bool_and(coalesce(l.quantity + l.earlier <= p.available, false)
                    AND (l.quantity + l.own_earlier + CASE WHEN w.open_orders > 0 THEN (
                             SELECT coalesce(sum(i.quantity) FILTER (WHERE o.due_at > w.at), 0)
                             FROM orders o JOIN order_items i ON i.order_id = o.id AND i.product_id = l.product_id
                             WHERE o.customer_id = w.customer_id AND o.status = 'pending'
                         ) ELSE 0 END <= @max_open_units::bigint) IS NOT FALSE
               ) OVER placement
               AND min(p.currency) OVER placement = max(p.currency) OVER placement
               AND (w.open_orders + w.nth <= @max_open_orders::bigint) IS NOT FALSE
               AND (sum(p.price_cents * l.quantity) OVER placement
                    BETWEEN (c.charge ->> 'least')::bigint AND (c.charge ->> 'most')::bigint) IS NOT FALSE
               AND (sum(p.price_cents * l.quantity) OVER placement
                    % (c.charge ->> 'multiple')::bigint = 0) IS NOT FALSE AS is_accepted
    FROM wanted w
    JOIN unnest(@line_placements::bigint[], @line_products::uuid[], @line_quantities::bigint[],
                @line_earlier::bigint[], @line_own_earlier::bigint[])
         AS l (n, product_id, quantity, earlier, own_earlier) ON l.n = w.n
    LEFT JOIN products p ON p.id = l.product_id
    CROSS JOIN LATERAL (SELECT coalesce(@charges::jsonb -> p.currency, @charges::jsonb -> '') AS charge) AS c
    WHERE w.existing_id IS NULL
    WINDOW placement AS (PARTITION BY w.n)
),
accepted AS MATERIALIZED (
    SELECT d.*, d.at + @time_to_pay::bigint * interval '1 microsecond' AS expires_at
    FROM decided d
    WHERE is_first AND is_accepted
),
customer AS (
    -- A sign-up writes nothing: the customer's row is written with the first order. PostgreSQL checks the foreign key
    -- of the order at the end of the statement.
    INSERT INTO customers (id) SELECT customer_id FROM accepted
    ON CONFLICT DO NOTHING
),
placed AS (
    INSERT INTO orders (id, customer_id, total_cents, currency, idempotency_key, fingerprint, created_at, expires_at, span)
    SELECT id, customer_id, total_cents, currency, idempotency_key, fingerprint, at, expires_at, span FROM accepted
),
items AS (
    INSERT INTO order_items (order_id, product_id, quantity, unit_price_cents, name)
    SELECT id, product_id, quantity, price_cents, name FROM decided WHERE is_accepted
),
reserved AS (
    UPDATE products p SET available = p.available - sold.quantity
    FROM (SELECT product_id, sum(quantity) AS quantity FROM decided WHERE is_accepted GROUP BY product_id) sold
    WHERE p.id = sold.product_id
),
owed AS (
    -- expires_at is the due time of an order that is not held.
    INSERT INTO outbox (kind, task_id, due_at)
    SELECT @kind::text, id::text, expires_at FROM accepted
)
SELECT w.n, a.id IS NOT NULL AS placed, a.total_cents::bigint AS total_cents, a.currency, a.at AS created_at, a.expires_at,
       w.existing_id, clock_timestamp() AS server_time,
       CASE WHEN a.id IS NULL AND w.existing_id IS NULL AND w.open_orders IS DISTINCT FROM 0 THEN (
           SELECT json_agg(json_build_object('order_id', o.id, 'product_id', i.product_id, 'quantity', i.quantity)
                           ORDER BY o.created_at DESC, o.id DESC) FILTER (WHERE o.due_at > w.at)
           FROM orders o JOIN order_items i ON i.order_id = o.id
           WHERE o.customer_id = w.customer_id AND o.status = 'pending'
       ) END AS open_lines
FROM wanted w LEFT JOIN accepted a ON a.n = w.n
