#!lua flags=allow-oom
-- limit_release: end the holds of jobs of one type, and return starts that were not used.
--
-- KEYS  pairs, one for each partition: its bucket, its holders (see limit_take)
-- ARGV  1  ms for one start, or '': no rate
--       2… for each partition: how many starts to return, n, n holders    (at most 2,000 values)
-- Answer how many holds have ended
--
-- A bucket that has become full meanwhile has no key: nothing is returned to it.
-- Bound: O(values log holders). Allowed when Redis is full: it frees memory.
local interval, ended, at = tonumber(ARGV[1]), 0, 2
for key = 1, #KEYS, 2 do
    local unused, n = tonumber(ARGV[at]), tonumber(ARGV[at + 1])
    if interval and unused > 0 then
        local full = tonumber(redis.call('GET', KEYS[key]) or '')
        if full then
            local text = string.format('%.6f', full - unused * interval)
            redis.call('SET', KEYS[key], text, 'KEEPTTL')
        end
    end
    for i = at + 2, at + 1 + n do
        ended = ended + redis.call('ZREM', KEYS[key + 1], ARGV[i])
    end
    at = at + 2 + n
end
return ended
