-- Moves tasks to the dead letters, with their last error; the attempt counts as failed. Whatever else
-- was scheduled for them goes too: one redrive delivers it. A task whose lease is not the token's is
-- left alone.
--
-- KEYS    1 due, 2 leased, 3 dead, 4 attempts, 5 errors
-- ARGV    1 token, then pairs: id, error
-- Returns how many were held and are buried

local ids = {}
for i = 2, #ARGV, 2 do
    ids[#ids + 1] = ARGV[i]
end
local at = now()
local mine = held(KEYS[2], ARGV[1], ids)
for _, i in ipairs(mine) do
    redis.call('ZREM', KEYS[1], ids[i])
    redis.call('ZREM', KEYS[2], ids[i])
    redis.call('ZADD', KEYS[3], at, ids[i])
    fail(KEYS[4], KEYS[5], ids[i], ARGV[2 * i + 1])
end
return #mine
