-- Lists tasks that no window shows soon: those that are due last, and dead letters, drawn at random if there are more.
-- A task whose due time no clock reaches is due now: its handler knows when it is, or that it is not.
--
-- KEYS    1 due, 2 dead
-- ARGV    1 the most of each to return
-- Returns ids

local ids = redis.call('ZREVRANGE', KEYS[1], 0, ARGV[1] - 1)
for _, id in ipairs(redis.call('ZRANDMEMBER', KEYS[2], ARGV[1])) do
    ids[#ids + 1] = id
end

local at = now()
local never = string.format('(%.0f', at + 1e16) -- later than the longest Go duration
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], never, '+inf', 'LIMIT', 0, 1000)) do
    redis.call('ZADD', KEYS[1], at, id)
end
return ids
