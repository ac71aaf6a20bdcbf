#!lua flags=allow-oom
-- limit_release: end the holds of jobs of one type, and return starts that were not used.
--
-- KEYS  1  partitions in use (sorted set: partition by end of use, ms)
--       2… pairs, one for each partition: its bucket, its holders (see limit_take)
-- ARGV  1  now in ms, or '' for this server's TIME    2  ms for one start, or '': no rate
--       3… for each partition: its name, m, m pairs: TIME of a take in ms, or '': now, and how many of its starts
--          to return; n, n holders  (at most 2,000 values)
-- Answer {TIME in ms, how many holds have ended}
--
-- Starts that come back so many ms after their take fill the bucket by so many ms less: without that take the
-- bucket may have been full meanwhile, and a full bucket gathers nothing. Otherwise more could start in a
-- moment than the burst.
-- A bucket that has become full meanwhile has no key: nothing is returned to it. A partition without holders is
-- in use until its bucket is full, and no longer: further partitions may need its place.
-- Bound: O(values log holders). Allowed when Redis is full: it frees memory.
local function time_ms()
    local t = redis.call('TIME')
    return t[1] * 1000 + math.floor(t[2] / 1000)
end
local now, interval = tonumber(ARGV[1]) or time_ms(), tonumber(ARGV[2])
local ended, at = 0, 3
for key = 2, #KEYS, 2 do
    local name, pairs_end = ARGV[at], at + 1 + 2 * tonumber(ARGV[at + 1])
    local full, back = tonumber(redis.call('GET', KEYS[key]) or ''), 0
    if full and interval then
        for i = at + 2, pairs_end, 2 do
            local passed = math.abs(now - (tonumber(ARGV[i]) or now))  -- abs: the clock was set back
            back = back + math.max(0, ARGV[i + 1] * interval - passed)
        end
    end
    if back > 0 then
        full = full - back
        redis.call('SET', KEYS[key], string.format('%.6f', full), 'KEEPTTL')
    end
    local n = tonumber(ARGV[pairs_end + 1])
    for i = pairs_end + 2, pairs_end + 1 + n do
        ended = ended + redis.call('ZREM', KEYS[key + 1], ARGV[i])
    end
    if redis.call('ZCARD', KEYS[key + 1]) == 0 then
        if full then
            redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', math.ceil(full)), name)
        else
            redis.call('ZREM', KEYS[1], name)
        end
    end
    at = pairs_end + 2 + n
end
return {string.format('%.0f', now), ended}
