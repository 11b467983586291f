-- Acknowledges tasks: their leases end and their attempts are forgotten. A task whose lease is not
-- the token's (it expired and is someone else's, or it is acked already) is left alone.
--
-- KEYS    1 leased, 2 attempts, 3 errors
-- ARGV    1 token, then ids
-- Returns how many were held and are acked

local ids = { unpack(ARGV, 2) }
local mine = {}
for _, i in ipairs(held(KEYS[1], ARGV[1], ids)) do
    mine[#mine + 1] = ids[i]
end
if #mine > 0 then
    redis.call('ZREM', KEYS[1], unpack(mine))
    redis.call('HDEL', KEYS[2], unpack(mine))
    redis.call('HDEL', KEYS[3], unpack(mine))
end
return #mine
