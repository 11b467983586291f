-- Locks what decides on a new booking: its screening, then its customer. The next statement of the transaction
-- decides. It cannot be part of this statement, because a statement that waits for a lock still sees the other rows as
-- they were before its wait.
--
-- The lock of the screening puts its bookings one after the other, so that a booking of any free seats finds those
-- that became free before. If your customers name all seats, you do not need it: the locks of the seats suffice.
--
-- $1 screening id · $2 customer id · $3 lock_timeout for the rest of the transaction
WITH setting AS MATERIALIZED (
    SELECT set_config('lock_timeout', $3::text, true)
),
locked AS MATERIALIZED (
    -- The count makes PostgreSQL evaluate setting first. NO KEY, because the foreign keys of bookings and seats take
    -- KEY SHARE locks on the screening.
    SELECT id FROM screenings WHERE id = $1::uuid AND (SELECT count(*) FROM setting) = 1 FOR NO KEY UPDATE
)
-- A customer has no row to lock. The lock makes the bookings of a customer count each other, at all screenings.
SELECT pg_advisory_xact_lock(hashtextextended($2::uuid::text, 0)) FROM locked
