-- Claims due tasks: removes them from the due set (ZREM) and leases them to the caller (ZADD). First it moves tasks
-- whose leases have ended back to the due set, so that the tasks of a dead worker are delivered again.
--
-- ZREM comes before ZADD, because a Redis without free memory rejects a script whose first write needs memory, but does
-- not stop a script after its first write.
--
-- The token of a claim is the time when its leases end. If a lease has ended or was renewed, the next lease of the task
-- ends later. So a worker that has lost its lease does not have the token of the next lease.
--
-- KEYS    1 due, 2 leased, 3 attempts
-- ARGV    1 limit, both of the tasks to claim and of the ended leases to move, 2 time of the lease in µs
-- Returns token, µs until the next task is due or the next lease ends (max_time: there is neither),
--         then pairs: id, failed attempts so far

local at = now()

-- Returns the µs until the next task is due or the next lease ends: 0 if a task is due or a lease has ended, max_time
-- if there is neither a task nor a lease.
local function next_wait()
    local soonest = max_time
    for _, key in ipairs({ KEYS[1], KEYS[2] }) do
        local score = lowest_score(key)
        if score then
            soonest = math.min(soonest, math.max(time_left(score, at), 0))
        end
    end
    return soonest
end

local lease_end = at + ARGV[2]
local reply = { string.format('%.0f', lease_end), next_wait() }
if reply[2] ~= 0 then
    return reply -- nothing is due: the script ends here, so that an idle worker costs Redis few commands
end

local expired = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', at, 'WITHSCORES', 'LIMIT', 0, ARGV[1])
for i = 1, #expired, 2 do
    redis.call('ZREM', KEYS[2], expired[i])
    redis.call('ZADD', KEYS[1], 'LT', expired[i + 1], expired[i])
end

local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', at, 'LIMIT', 0, ARGV[1])
if #ids > 0 then
    local other_ends = redis.call('ZMSCORE', KEYS[2], unpack(ids))
    local failures = redis.call('HMGET', KEYS[3], unpack(ids))
    local taken, leased = {}, {}
    for i, id in ipairs(ids) do
        if other_ends[i] then
            -- The task was scheduled again while it is leased. Its second delivery waits for the end of the lease.
            redis.call('ZREM', KEYS[1], id)
            redis.call('ZADD', KEYS[1], other_ends[i], id)
        else
            taken[#taken + 1] = id
            leased[#leased + 1] = lease_end
            leased[#leased + 1] = id
            reply[#reply + 1] = id
            reply[#reply + 1] = attempts_of(failures[i])
        end
    end
    if #taken > 0 then
        redis.call('ZREM', KEYS[1], unpack(taken))
        redis.call('ZADD', KEYS[2], unpack(leased))
    end
end

reply[2] = next_wait()
return reply
