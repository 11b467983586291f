-- Returns the screening with an id and the names of its free seats, or all screenings without these names.
--
-- $1 screening id, or NULL
SELECT c.id, c.title, c.starts_at, count(s.seat) AS capacity, count(s.seat) FILTER (WHERE s.booking_id IS NULL) AS free,
       json_agg(s.seat ORDER BY s.seat) FILTER (WHERE s.booking_id IS NULL AND $1::uuid IS NOT NULL) AS free_seats
FROM screenings c LEFT JOIN seats s ON s.screening_id = c.id
WHERE c.id = $1::uuid OR $1::uuid IS NULL
GROUP BY c.id
ORDER BY c.starts_at, c.id
