-- Schedules tasks. A task keeps the earlier of two due times (ZADD LT), so that a repeated or delayed message does not
-- make it late. A dead letter stays dead until it is redriven.
--
-- KEYS    1 due, 2 dead
-- ARGV    1 wake-up channel, 2 shard, then pairs: id, wait in µs (negative: overdue)
-- Returns the number of ids that are dead letters and were not changed

local at = now()
local before = lowest_score(KEYS[1])
local skipped = 0
for i = 3, #ARGV, 2 do
    if redis.call('ZSCORE', KEYS[2], ARGV[i]) then
        skipped = skipped + 1
    else
        redis.call('ZADD', KEYS[1], 'LT', at + ARGV[i + 1], ARGV[i])
    end
end
wake(KEYS[1], before, at, ARGV[1], ARGV[2])
return skipped
