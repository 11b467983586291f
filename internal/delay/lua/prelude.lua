-- This text comes before every script. All times are microseconds by Redis's clock. A double holds them exactly until
-- the year 2255. PostgreSQL's times are microseconds too, so no due time is rounded to before its deadline.
--
-- Other clients can write to the keys, so the scripts do not trust their content: a score can be infinite, and a number
-- of attempts can be any text.

local function now()
    local t = redis.call('TIME')
    return t[1] * 1000000 + t[2]
end

-- The longest time that a script returns, in microseconds: 285 years. A Go duration cannot hold more than 292 years.
local max_time = 9e15

-- Returns the time from at until a score, between -max_time and max_time. Not every Lua reads "inf" as a number.
local function time_left(score, at)
    local n = tonumber(score) or (string.find(score, '-', 1, true) and -math.huge or math.huge)
    return math.max(-max_time, math.min(max_time, n - at))
end

-- Reads a number of failed attempts. Returns 0 if the text is not such a number.
local function attempts_of(text)
    local n = text and tonumber(text)
    return n and n >= 0 and n < 1e9 and math.floor(n) or 0
end

-- Returns the lowest score of a sorted set, or nil if the set is empty.
local function lowest_score(key)
    return redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
end

-- Publishes a wake-up if the earliest due time has become earlier, or if the earliest task has been overdue for more
-- than a second. Then workers are busy, or they sleep too long, because they lost a wake-up or because Redis's clock
-- jumped ahead. before is the lowest score of the due set, read before the script's first write to this set. pcall,
-- because a user without a right to the channel must lose wake-ups only, and not the tasks.
local function wake(due, before, at, channel, shard)
    local after = lowest_score(due)
    if after and (not before or time_left(after, 0) < time_left(before, 0) or time_left(before, at) < -1e6) then
        redis.pcall('PUBLISH', channel, shard)
    end
end

-- Returns the indexes, from 1, of the ids whose leases have the token.
local function with_token(leased, token, ids)
    local scores = redis.call('ZMSCORE', leased, unpack(ids))
    local indexes = {}
    for i = 1, #ids do
        if scores[i] and tonumber(scores[i]) == tonumber(token) then
            indexes[#indexes + 1] = i
        end
    end
    return indexes
end

-- Counts a failed attempt of a task and stores its error.
local function fail(attempts, errors, id, err)
    redis.call('HSET', attempts, id, attempts_of(redis.call('HGET', attempts, id)) + 1)
    redis.call('HSET', errors, id, err)
end
