-- Deletes the oldest events that the provider does not send again.
--
-- $1 age in microseconds · $2 most rows
DELETE FROM provider_events WHERE id IN (
    SELECT id FROM provider_events
    WHERE received_at < now() - $1::bigint * interval '1 microsecond'
    ORDER BY received_at LIMIT $2::bigint
)
