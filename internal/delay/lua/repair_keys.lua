-- Repairs the keys after another client wrote to them. A key whose value has a wrong type is renamed: then
-- the queue can use the key again, and an operator can look at the value. A lease with more time left than the
-- longest lease was not written by a claim, but by another client. Its task is made due now, for at most 1,000 tasks in
-- one run.
--
-- KEYS    1 due, 2 leased, 3 dead, 4 attempts, 5 errors, 6 marker, 7 owners
-- ARGV    1 the longest lease in µs
-- Returns the new names of the keys that were renamed

local types = { 'zset', 'zset', 'zset', 'hash', 'hash', 'string', 'zset' }
local renamed = {}
for i, key in ipairs(KEYS) do
    local found = redis.call('TYPE', key)['ok']
    if found ~= 'none' and found ~= types[i] then
        renamed[#renamed + 1] = key .. ':set-aside'
        redis.call('RENAME', key, renamed[#renamed])
    end
end

local at = now()
local latest_end = string.format('%.0f', at + ARGV[1])
local too_long = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. latest_end, '+inf', 'LIMIT', 0, 1000)
for _, id in ipairs(too_long) do
    redis.call('ZREM', KEYS[2], id)
    redis.call('ZADD', KEYS[1], 'LT', at, id)
end
return renamed
