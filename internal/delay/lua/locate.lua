-- Tells where tasks are. Reads only, and all of them at one instant: read by single commands, a task
-- that moves from leased back to due between two of them would look lost.
--
-- KEYS    1 due, 2 leased, 3 dead
-- ARGV    ids
-- Returns pairs: place (0 absent, 1 scheduled, 2 leased, 3 dead), µs until it is due or its lease ends

local at = now()
local due = redis.call('ZMSCORE', KEYS[1], unpack(ARGV))
local leased = redis.call('ZMSCORE', KEYS[2], unpack(ARGV))
local dead = redis.call('ZMSCORE', KEYS[3], unpack(ARGV))
local reply = {}
for i = 1, #ARGV do
    local place, left = 0, 0
    if leased[i] then
        place, left = 2, tonumber(leased[i]) - at
    elseif due[i] then
        place, left = 1, tonumber(due[i]) - at
    elseif dead[i] then
        place = 3
    end
    reply[#reply + 1] = place
    reply[#reply + 1] = left
end
return reply
