-- Lists tasks that are due within a time from now, the earliest first.
--
-- KEYS    1 due
-- ARGV    1 how far ahead in µs, 2 how many to skip, 3 the most to return
-- Returns ids

return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now() + ARGV[1], 'LIMIT', ARGV[2], ARGV[3])
