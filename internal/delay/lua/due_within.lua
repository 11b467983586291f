-- Lists the tasks that are due within a duration from now, the earliest first.
--
-- KEYS    1 due
-- ARGV    1 duration in µs, 2 number of tasks to skip, 3 limit of the tasks to return
-- Returns ids

return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now() + ARGV[1], 'LIMIT', ARGV[2], ARGV[3])
