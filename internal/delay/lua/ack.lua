-- Acknowledges tasks: ends their leases and deletes their failed attempts and errors. A task whose lease does not have
-- the token is not changed: the lease has ended, or the task was acknowledged, retried or buried before.
--
-- KEYS    1 leased, 2 attempts, 3 errors
-- ARGV    1 token, then ids
-- Returns the number of tasks whose leases had the token

local ids = { unpack(ARGV, 2) }
local acked = {}
for _, i in ipairs(with_token(KEYS[1], ARGV[1], ids)) do
    acked[#acked + 1] = ids[i]
end
if #acked > 0 then
    redis.call('ZREM', KEYS[1], unpack(acked))
    redis.call('HDEL', KEYS[2], unpack(acked))
    redis.call('HDEL', KEYS[3], unpack(acked))
end
return #acked
