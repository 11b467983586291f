-- Acknowledges tasks: ends their leases and deletes their failed attempts and errors. A task whose lease does not have
-- the token is not changed: its lease has ended, or the task is settled already.
--
-- KEYS    1 leased, 2 attempts, 3 errors
-- ARGV    1 token, then ids
-- Returns the number of tasks whose leases had the token

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
