-- Returns the states of tasks, all at one instant. With one command for each set, a task that moves from one set to
-- another between two commands could seem to be absent.
--
-- KEYS    1 due, 2 leased, 3 dead, 4 attempts
-- ARGV    ids
-- Returns triples: state (0 absent, 1 scheduled, 2 leased, 3 dead), µs until the task is due or its lease ends,
--         failed attempts so far

local at = now()
local due = redis.call('ZMSCORE', KEYS[1], unpack(ARGV))
local leased = redis.call('ZMSCORE', KEYS[2], unpack(ARGV))
local dead = redis.call('ZMSCORE', KEYS[3], unpack(ARGV))
local failures = redis.call('HMGET', KEYS[4], unpack(ARGV))
local reply = {}
for i = 1, #ARGV do
    local state, wait = 0, 0
    if leased[i] then
        state, wait = 2, time_left(leased[i], at)
    elseif dead[i] then -- even if the task is also in the due set: only a redrive may deliver a dead letter
        state = 3
    elseif due[i] then
        state, wait = 1, time_left(due[i], at)
    end
    reply[#reply + 1] = state
    reply[#reply + 1] = wait
    reply[#reply + 1] = attempts_of(failures[i])
end
return reply
