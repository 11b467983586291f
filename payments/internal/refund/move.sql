-- Moves a refund to the state that the provider reported. Returns the refund if that changed its state.
--
-- $1 refund id · $2 state when it was taken · $3 try when it was taken
-- $4 new state · $5 id at the provider or '' · $6 error or '' · $7 whether the next try needs a new key
-- $8 next check when it was taken: the books may have moved it meanwhile, and the refund must be checked again
WITH moved AS (
    UPDATE refunds
    SET state = $4::text, provider_id = coalesce(nullif($5::text, ''), provider_id), error = nullif($6::text, ''),
        try = try + CASE WHEN $7::boolean THEN 1 ELSE 0 END,
        ended_at = CASE WHEN $4::text IN ('confirmed', 'failed') THEN CASE state WHEN $4::text THEN ended_at ELSE clock.at END END,
        next_check = CASE
            WHEN next_check <> $8::timestamptz THEN next_check
            -- A confirmed refund can fail up to some 30 days later.
            WHEN $4::text = 'confirmed' AND state <> 'confirmed' THEN clock.at + interval '35 days'
            WHEN $4::text = 'confirmed' AND clock.at < ended_at + interval '35 days' THEN ended_at + interval '35 days'
            WHEN $4::text IN ('confirmed', 'failed') THEN NULL
            ELSE clock.at + least(greatest((clock.at - created_at) / 10, interval '2 s'), interval '1 h')
        END
    FROM (SELECT clock_timestamp() AS at) AS clock
    WHERE id = $1::uuid AND state = $2::text AND try = $3::int
    RETURNING id, state
)
SELECT id FROM moved WHERE state <> $2::text
