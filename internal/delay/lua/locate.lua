-- Tells where tasks are. Reads only, and all of them at one instant: read by single commands, a task
-- that moves from leased back to due between two of them would look lost.
--
-- KEYS    1 due, 2 leased, 3 dead, 4 attempts
-- ARGV    ids
-- Returns triples: place (0 absent, 1 scheduled, 2 leased, 3 dead), µs until it is due or its lease ends,
--         failed attempts so far

local at = now()
local due = redis.call('ZMSCORE', KEYS[1], unpack(ARGV))
local leased = redis.call('ZMSCORE', KEYS[2], unpack(ARGV))
local dead = redis.call('ZMSCORE', KEYS[3], unpack(ARGV))
local failures = redis.call('HMGET', KEYS[4], unpack(ARGV))
local reply = {}
for i = 1, #ARGV do
    local place, wait = 0, 0
    if leased[i] then
        place, wait = 2, left(leased[i], at)
    elseif dead[i] then -- even if another client has scheduled it, too: only a redrive changes when it is due
        place = 3
    elseif due[i] then
        place, wait = 1, left(due[i], at)
    end
    reply[#reply + 1] = place
    reply[#reply + 1] = wait
    reply[#reply + 1] = count(failures[i])
end
return reply
