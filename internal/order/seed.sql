-- Adds the sample products that do not exist yet. Their ids are fixed, so that examples can name them.
INSERT INTO products (id, name, price_cents, currency, supply, available)
SELECT ('01900000-0000-7000-8000-00000000000' || n)::uuid, name, price_cents, 'EUR', supply, supply
FROM (VALUES
    (1, 'Espresso beans, 1 kg', 2190, 10000),
    (2, 'Moka pot, 6 cups', 3450, 40),
    (3, 'Hand grinder', 8900, 25),
    (4, 'Porcelain cup', 1250, 2000),
    (5, 'Barista course, one seat', 14900, 6)
) AS sample (n, name, price_cents, supply)
ON CONFLICT DO NOTHING
