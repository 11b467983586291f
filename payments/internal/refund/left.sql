-- Returns the microseconds until the next check of each refund, for those refunds that have one.
--
-- $1 refund ids
SELECT id, (extract(epoch FROM next_check - clock_timestamp()) * 1000000)::bigint AS left_us
FROM refunds
WHERE id = ANY ($1::uuid[]) AND next_check IS NOT NULL
