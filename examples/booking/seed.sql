-- Adds the sample courses, but for those that exist. Their ids are fixed, so that examples can name them.
INSERT INTO courses (id, title, capacity, free, begins_at)
SELECT id, title, places, places, now() + interval '30 days'
FROM (VALUES
    ('01900000-0000-7000-8000-000000000001'::uuid, 'Swimming', 1000),
    ('01900000-0000-7000-8000-000000000002'::uuid, 'Yoga', 100),
    ('01900000-0000-7000-8000-000000000003'::uuid, 'Fencing', 6)
) AS sample (id, title, places)
ON CONFLICT DO NOTHING
