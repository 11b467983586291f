-- Lists the tasks that are due last, and dead letters. If there are more dead letters than the limit, it chooses some
-- at random. It also makes tasks due now whose due times are too far in the future for Go: their handler knows when they
-- are really due.
--
-- KEYS    1 due, 2 dead
-- ARGV    1 limit of each of the two lists
-- Returns ids

local ids = redis.call('ZREVRANGE', KEYS[1], 0, ARGV[1] - 1)
for _, id in ipairs(redis.call('ZRANDMEMBER', KEYS[2], ARGV[1])) do
    ids[#ids + 1] = id
end

local at = now()
local unreachable = string.format('(%.0f', at + 1e16) -- 317 years from now; a Go duration holds at most 292
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], unreachable, '+inf', 'LIMIT', 0, 1000)) do
    redis.call('ZADD', KEYS[1], at, id)
end
return ids
