-- Put before every script. All times are microseconds by Redis's own clock: exact in a double until
-- the year 2255, and as fine as PostgreSQL's, so nothing is ever rounded below its deadline.

local function now()
    local t = redis.call('TIME')
    return t[1] * 1000000 + t[2]
end

-- The lowest score of a sorted set, or nil.
local function head(key)
    local score = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
    return score and tonumber(score)
end

-- Wakes sleeping workers if the head of the due set moved forward from what it was before.
local function announce(due, before, channel, shard)
    local after = head(due)
    if after and (not before or after < before) then
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
