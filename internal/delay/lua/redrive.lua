-- Makes a dead letter due now, with no failed attempts.
--
-- KEYS    1 due, 2 dead, 3 attempts, 4 errors
-- ARGV    1 wake-up channel, 2 shard, 3 id
-- Returns 1, or 0 if there is no such dead letter

if redis.call('ZREM', KEYS[2], ARGV[3]) == 0 then
    return 0
end
local at = now()
local before = lowest_score(KEYS[1])
redis.call('HDEL', KEYS[3], ARGV[3])
redis.call('HDEL', KEYS[4], ARGV[3])
redis.call('ZADD', KEYS[1], 'LT', at, ARGV[3])
wake(KEYS[1], before, at, ARGV[1], ARGV[2])
return 1
