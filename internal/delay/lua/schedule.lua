-- Schedules tasks. Of two due times of one task the earlier stays (ZADD LT), so that a replay or a
-- reordering never makes a task late. A dead letter stays dead until it is redriven.
--
-- KEYS    1 due, 2 dead
-- ARGV    1 wake-up channel, 2 shard, then pairs: id, wait in µs (negative: overdue)
-- Returns how many of the ids are dead letters and were left alone

local at = now()
local before = head(KEYS[1])
local refused = 0
for i = 3, #ARGV, 2 do
    if redis.call('ZSCORE', KEYS[2], ARGV[i]) then
        refused = refused + 1
    else
        redis.call('ZADD', KEYS[1], 'LT', at + ARGV[i + 1], ARGV[i])
    end
end
announce(KEYS[1], before, ARGV[1], ARGV[2])
return refused
