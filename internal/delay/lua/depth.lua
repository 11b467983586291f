-- Counts tasks by state.
--
-- KEYS    1 due, 2 leased, 3 dead
-- ARGV    none
-- Returns the numbers of tasks that are due later, due now, leased and dead, and the µs that the oldest due task has
--         waited

local at = now()
local all = redis.call('ZCARD', KEYS[1])
local due = redis.call('ZCOUNT', KEYS[1], '-inf', at)
local waited = due > 0 and -time_left(lowest_score(KEYS[1]), at) or 0
return { all - due, due, redis.call('ZCARD', KEYS[2]), redis.call('ZCARD', KEYS[3]), waited }
