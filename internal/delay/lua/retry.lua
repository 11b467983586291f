-- Returns tasks to the due set, due again after a wait. If there is an error, the attempt counts as failed. A task
-- whose lease does not have the token is not changed.
--
-- KEYS    1 due, 2 leased, 3 attempts, 4 errors
-- ARGV    1 wake-up channel, 2 shard, 3 token, then triples: id, wait in µs, error (empty: the attempt has not failed)
-- Returns the number of tasks whose leases had the token

local ids = {}
for i = 4, #ARGV, 3 do
    ids[#ids + 1] = ARGV[i]
end
local at = now()
local before = lowest_score(KEYS[1])
local indexes = with_token(KEYS[2], ARGV[3], ids)
for _, i in ipairs(indexes) do
    local wait, err = ARGV[3 * i + 2], ARGV[3 * i + 3]
    redis.call('ZREM', KEYS[2], ids[i])
    redis.call('ZADD', KEYS[1], 'LT', at + wait, ids[i])
    if err ~= '' then
        fail(KEYS[3], KEYS[4], ids[i], err)
    end
end
wake(KEYS[1], before, at, ARGV[1], ARGV[2])
return #indexes
