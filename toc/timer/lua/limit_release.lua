#!lua flags=allow-oom
-- limit_release: end the holds of jobs of one type, and return starts that were not used.
--
-- KEYS  1  partitions in use (sorted set: partition by end of use, ms)
--       2… pairs, one for each partition: its bucket, its holders (see limit_take)
-- ARGV  1  ms for one start, or '': no rate
--       2… for each partition: its name, how many starts to return, n, n holders  (at most 2,000 values)
-- Answer how many holds have ended
--
-- A bucket that has become full meanwhile has no key: nothing is returned to it. A partition without holders is
-- in use until its bucket is full, and no longer: further partitions may need its place.
-- Bound: O(values log holders). Allowed when Redis is full: it frees memory.
local interval, ended, at = tonumber(ARGV[1]), 0, 2
for key = 2, #KEYS, 2 do
    local name, unused, n = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2])
    local full = tonumber(redis.call('GET', KEYS[key]) or '')
    if full and interval and unused > 0 then
        full = full - unused * interval
        redis.call('SET', KEYS[key], string.format('%.6f', full), 'KEEPTTL')
    end
    for i = at + 3, at + 2 + n do
        ended = ended + redis.call('ZREM', KEYS[key + 1], ARGV[i])
    end
    if redis.call('ZCARD', KEYS[key + 1]) == 0 then
        if full then
            redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', math.ceil(full)), name)
        else
            redis.call('ZREM', KEYS[1], name)
        end
    end
    at = at + 3 + n
end
return ended
