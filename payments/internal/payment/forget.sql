-- Ends the checks of a session that the provider does not know, or that belongs to another attempt. An attempt that never
-- was open has its session only from an event; an open one has it from the provider's own answer, and stays as it is.
--
-- $1 attempt id · $2 session id
UPDATE payment_attempts
SET session_id = CASE WHEN was_open THEN session_id END, asked_at = NULL,
    next_check = CASE state WHEN 'closed' THEN NULL ELSE next_check END
WHERE id = $1::uuid AND session_id = $2::text AND state IN ('creating', 'closed')
