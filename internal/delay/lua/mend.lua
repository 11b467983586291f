-- Mends what no script can work with. A key of another type than the queue's is renamed, so that the queue begins anew
-- with it and a person can look at what it was. A lease that ends later than any lease can makes its task due now: its
-- end was not written by a claim.
--
-- KEYS    1 due, 2 leased, 3 dead, 4 attempts, 5 errors, 6 sentinel
-- ARGV    1 the longest lease in µs
-- Returns the new names of the keys that were renamed

local types = { 'zset', 'zset', 'zset', 'hash', 'hash', 'string' }
local renamed = {}
for i, key in ipairs(KEYS) do
    local is = redis.call('TYPE', key)['ok']
    if is ~= 'none' and is ~= types[i] then
        renamed[#renamed + 1] = key .. ':set-aside'
        redis.call('RENAME', key, renamed[#renamed])
    end
end

local at = now()
local endless = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. string.format('%.0f', at + ARGV[1]), '+inf', 'LIMIT', 0, 1000)
for _, id in ipairs(endless) do
    redis.call('ZREM', KEYS[2], id)
    redis.call('ZADD', KEYS[1], 'LT', at, id)
end
return renamed
