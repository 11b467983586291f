-- The end of each statement that returns orders to their customers. The statement names the orders result, rows of the
-- table with the column changed, and the present clock.
SELECT o.id, o.customer_id, o.status, o.cancel_reason, o.total_cents, o.currency, o.created_at, o.expires_at, o.due_at,
       o.hold_until, o.extensions, o.paid_at, o.cancelled_at, o.changed, clock.at AS server_time, (
    SELECT json_agg(json_build_object('product_id', i.product_id, 'name', i.name,
                                      'quantity', i.quantity, 'unit_price_cents', i.unit_price_cents) ORDER BY i.product_id)
    FROM order_items i
    WHERE i.order_id = o.id
) AS items
FROM result o CROSS JOIN clock
