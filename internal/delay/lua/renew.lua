-- Renews leases, so that they end later and have a new token: the token of a lease is the time when it ends. A task
-- whose lease does not have the old token is not changed. ZREM comes before ZADD for the same reason as in claim.lua.
--
-- KEYS    1 leased
-- ARGV    1 old token, 2 time of the lease in µs, then ids
-- Returns the new token, or an empty text if no lease had the old one

local ids = { unpack(ARGV, 3) }
local lease_end = now() + ARGV[2]
local mine, leased = {}, {}
for _, i in ipairs(with_token(KEYS[1], ARGV[1], ids)) do
    mine[#mine + 1] = ids[i]
    leased[#leased + 1] = lease_end
    leased[#leased + 1] = ids[i]
end
if #mine == 0 then
    return ''
end
redis.call('ZREM', KEYS[1], unpack(mine))
redis.call('ZADD', KEYS[1], unpack(leased))
return string.format('%.0f', lease_end)
