-- Claims due tasks: takes them out of the due set (ZREM) and leases them to the caller (ZADD).
-- Before that, expired leases go back to due, so a dead worker's tasks need no one to look for them.
-- ZREM goes before ZADD: a Redis that is out of memory refuses a script whose first write adds, and lets
-- one that has begun to write end. The token is the lease's end: microseconds, and one script runs at a time, so no two claims share one.
--
-- KEYS    1 due, 2 leased, 3 attempts
-- ARGV    1 the most tasks to take (and the most expired leases to return), 2 lease in µs
-- Returns token, µs until the next task is due or the next lease ends (-1: neither exists),
--         then pairs: id, failed attempts so far

local at = now()
local lease = at + ARGV[2]

local expired = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', at, 'WITHSCORES', 'LIMIT', 0, ARGV[1])
for i = 1, #expired, 2 do
    redis.call('ZREM', KEYS[2], expired[i])
    redis.call('ZADD', KEYS[1], 'LT', expired[i + 1], expired[i])
end

local reply = { string.format('%.0f', lease), -1 }
local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', at, 'LIMIT', 0, ARGV[1])
if #ids > 0 then
    local leases = redis.call('ZMSCORE', KEYS[2], unpack(ids))
    local failures = redis.call('HMGET', KEYS[3], unpack(ids))
    local taken, leased = {}, {}
    for i, id in ipairs(ids) do
        if leases[i] then
            -- Scheduled again while leased: a second delivery is owed, but never beside the first.
            redis.call('ZREM', KEYS[1], id)
            redis.call('ZADD', KEYS[1], leases[i], id)
        else
            taken[#taken + 1] = id
            leased[#leased + 1] = lease
            leased[#leased + 1] = id
            reply[#reply + 1] = id
            reply[#reply + 1] = count(failures[i])
        end
    end
    if #taken > 0 then
        redis.call('ZREM', KEYS[1], unpack(taken))
        redis.call('ZADD', KEYS[2], unpack(leased))
    end
end

for _, key in ipairs({ KEYS[1], KEYS[2] }) do
    local next = head(key)
    if next then
        local wait = math.max(left(next, at), 0)
        reply[2] = reply[2] < 0 and wait or math.min(reply[2], wait)
    end
end
return reply
