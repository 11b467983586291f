-- Stores that nobody waits for the check of an attempt any more, unless somebody has asked for it again since then.
--
-- $1 attempt id · $2 when the check that was answered was asked for
UPDATE payment_attempts SET asked_at = NULL WHERE id = $1 AND asked_at = $2
