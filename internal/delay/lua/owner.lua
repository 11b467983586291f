-- Returns who has the lease of a task.
--
-- KEYS    1 leased, 2 owners
-- ARGV    1 id
-- Returns the name that the owner gave to claim or renew, or an empty text: the task is not leased, or the name is not known

local lease_end = redis.call('ZSCORE', KEYS[1], ARGV[1])
local owner = lease_end and redis.call('ZRANGEBYSCORE', KEYS[2], lease_end, lease_end)[1]
return owner and string.gsub(owner, '^%d+ ', '') or ''
