-- Counts the tasks by state, and the tasks in the due set by their due times, in ranges of one width.
--
-- KEYS    1 due, 2 leased, 3 dead
-- ARGV    1 µs from now to the start of the first range, 2 width of a range in µs, 3 number of ranges
-- Returns µs that the oldest due task has waited, and the numbers of tasks that are leased, dead, due before the first
--         range, in each range, and later

local at = now()
local oldest = lowest_score(KEYS[1])
local waited = oldest and math.max(0, -time_left(oldest, at)) or 0
local from = at + ARGV[1]
local before = redis.call('ZCOUNT', KEYS[1], '-inf', from - 1)
local reply = { waited, redis.call('ZCARD', KEYS[2]), redis.call('ZCARD', KEYS[3]), before }
for _ = 1, tonumber(ARGV[3]) do
    reply[#reply + 1] = redis.call('ZCOUNT', KEYS[1], from, from + ARGV[2] - 1)
    from = from + ARGV[2]
end
reply[#reply + 1] = redis.call('ZCOUNT', KEYS[1], from, '+inf')
return reply
