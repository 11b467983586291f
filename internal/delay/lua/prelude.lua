-- Put before every script. All times are microseconds by Redis's own clock: exact in a double until
-- the year 2255, and as fine as PostgreSQL's, so nothing is ever rounded below its deadline.
--
-- The content of the keys is input: other clients can write to them. A score can be infinite. A count can be text that
-- is not a number.

local function now()
    local t = redis.call('TIME')
    return t[1] * 1000000 + t[2]
end

-- The longest time that a script returns: 285 years, which fit into a Go duration.
local far = 9e15

-- The time from at until a score, at most far either way.
local function left(score, at)
    local n = tonumber(score) or (string.find(score, '-', 1, true) and -math.huge or math.huge)
    return math.max(-far, math.min(far, n - at))
end

-- A number of attempts, 0 for what is no such number.
local function count(text)
    local n = text and tonumber(text)
    return n and n >= 0 and n < 1e9 and math.floor(n) or 0
end

-- The lowest score of a sorted set, or nil.
local function head(key)
    return redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
end

-- Wakes sleeping workers if the head of the due set moved forward from what it was before.
local function announce(due, before, channel, shard)
    local after = head(due)
    if after and (not before or left(after, 0) < left(before, 0)) then
        redis.call('PUBLISH', channel, shard)
    end
end

-- The places, counted from 1, of those ids whose lease is the one that token names.
local function held(leased, token, ids)
    local scores = redis.call('ZMSCORE', leased, unpack(ids))
    local places = {}
    for i = 1, #ids do
        if scores[i] and tonumber(scores[i]) == tonumber(token) then
            places[#places + 1] = i
        end
    end
    return places
end

-- Counts a failed attempt of a task and keeps its error.
local function fail(attempts, errors, id, err)
    redis.call('HSET', attempts, id, count(redis.call('HGET', attempts, id)) + 1)
    redis.call('HSET', errors, id, err)
end
