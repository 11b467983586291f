-- Adds the sample screenings and their seats, but for those that exist. Their ids are fixed, so that examples can name
-- them. The seats of a row have the names A01, A02 and so on.
WITH sample (id, title, rows, per_row) AS (VALUES
    ('01900000-0000-7000-8000-000000000001'::uuid, 'The General', 26, 50),
    ('01900000-0000-7000-8000-000000000002'::uuid, 'Metropolis', 8, 12),
    ('01900000-0000-7000-8000-000000000003'::uuid, 'Sunrise', 1, 6)
),
added AS (
    INSERT INTO screenings (id, title, starts_at) SELECT id, title, now() + interval '30 days' FROM sample
    ON CONFLICT DO NOTHING
)
INSERT INTO seats (screening_id, seat)
SELECT id, chr(64 + r) || lpad(n::text, 2, '0')
FROM sample CROSS JOIN generate_series(1, rows) AS r CROSS JOIN generate_series(1, per_row) AS n
ON CONFLICT DO NOTHING
