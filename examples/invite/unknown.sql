-- Returns, for the reconciler, the ids of tasks for which there is no invitation of any status.
--
-- $1 ids of tasks, as text
SELECT asked.id FROM unnest($1::text[]) AS asked (id)
WHERE NOT EXISTS (
    SELECT FROM invitations i
    WHERE i.id = CASE WHEN asked.id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN asked.id::uuid END
)
