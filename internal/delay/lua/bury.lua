-- Makes tasks dead letters, with their last errors. The attempt counts as failed. If a second delivery of a task is
-- scheduled, it is removed, because only a redrive may deliver a dead letter. A task whose lease does not have the
-- token is not changed.
--
-- KEYS    1 due, 2 leased, 3 dead, 4 attempts, 5 errors
-- ARGV    1 token, then pairs: id, error
-- Returns the number of tasks whose leases had the token

local ids = {}
for i = 2, #ARGV, 2 do
    ids[#ids + 1] = ARGV[i]
end
local at = now()
local indexes = with_token(KEYS[2], ARGV[1], ids)
for _, i in ipairs(indexes) do
    redis.call('ZREM', KEYS[1], ids[i])
    redis.call('ZREM', KEYS[2], ids[i])
    redis.call('ZADD', KEYS[3], at, ids[i])
    fail(KEYS[4], KEYS[5], ids[i], ARGV[2 * i + 1])
end
return #indexes
